// Made by `make contract` from penstock/visible.py: do not edit.

// Characters that are invisible, or that change the order of visible characters.
export const UNSEEN = /[\p{Cc}\p{Cf}\p{Cn}\p{Co}\p{Cs}\p{Zl}\p{Zp}\u{34f}\u{115f}-\u{1160}\u{17b4}-\u{17b5}\u{180b}-\u{180d}\u{180f}\u{2800}\u{3164}\u{fe00}-\u{fe0f}\u{ffa0}\u{e0100}-\u{e01ef}]/u;
// The same, and all spaces except the ordinary space.
export const UNSEEN_OR_SPACE = /[\p{Cc}\p{Cf}\p{Cn}\p{Co}\p{Cs}\p{Zl}\p{Zp}\u{34f}\u{115f}-\u{1160}\u{17b4}-\u{17b5}\u{180b}-\u{180d}\u{180f}\u{2800}\u{3164}\u{fe00}-\u{fe0f}\u{ffa0}\u{e0100}-\u{e01ef}]|(?! )\p{Zs}/u;
