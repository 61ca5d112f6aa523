"""What tests share: `fakes` misbehave, `real` runs servers, `drive` drives, `recorded` replays."""
