// What the console uses of htm 3.1.1 with Preact (Apache-2.0 and MIT), for `tsc`.
export type Node = any;
export function h(type: any, props: any, ...children: any[]): Node;
export function html(strings: TemplateStringsArray, ...values: any[]): Node;
export function render(node: Node, parent: Element | null): void;
export class Component {
  props: any;
  state: any;
  base: any;
  [own: string]: any;
  setState(changes: any, then?: () => void): void;
}
