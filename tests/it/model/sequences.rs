//! Plays: short sequences of related operations, interleaved with random ones. Random operations
//! alone rarely occur in these orders.

use super::generate::{DrawContext, Generator, PathKind};
use super::ops::{Op, Verb};

/// Ways to free a checkpoint, weighted by repetition.
const WAYS: &[&str] = &[
    "now",
    "now",
    "now",
    "rmdir",
    "hide",
    "hide",
    "revive",
    "undo",
    "gc",
    "keep-last",
    "max-size",
];
/// Modes of `Verb::Open`.
const RDONLY: u64 = 0;
const RDWR: u64 = 1;
const WRONLY: u64 = 3;

impl Generator {
    /// Frees a checkpoint, usually the newest.
    pub(super) fn draw_free(&mut self) -> Op {
        let way = *self.random.pick(WAYS).expect("the list is not empty");
        let back = if self.random.one_in(4) {
            self.random.below(6)
        } else {
            0
        };
        let gc = u64::from(!self.random.one_in(3));
        Op::new(Verb::Free, &[way], &[back, gc])
    }

    /// Starts a play by queueing its operations.
    pub(super) fn play(&mut self, scene: &DrawContext<'_>) {
        let slot = self.handle(true);
        let mut play = match self.random.below(10) {
            0..=2 => self.play_free(scene, slot),
            3 => self.play_mark(scene, slot),
            4 => self.play_guard(scene, slot),
            5 => self.play_limited(scene, slot),
            6..=8 => self.play_cut(scene, slot),
            _ => self.play_verify(scene),
        };
        play.reverse();
        self.pending.extend(play);
    }

    /// Opens a file and leaves it open.
    fn hold(&mut self, scene: &DrawContext<'_>, slot: u64, mode: u64) -> Op {
        let path = self.existing(scene, PathKind::File);
        Op::new(Verb::Open, &[&path], &[slot, mode])
    }

    fn held_write(&mut self, slot: u64) -> Op {
        let numbers = [slot, self.random.below(3000), 10, self.random.below(1000)];
        Op::new(Verb::HandleWrite, &[], &numbers)
    }

    fn plain(verb: Verb) -> Op {
        Op::new(verb, &[], &[])
    }

    /// Frees the newest checkpoint while a file is open and idle, and makes another one.
    fn play_free(&mut self, scene: &DrawContext<'_>, slot: u64) -> Vec<Op> {
        // A file that may be mapped counts as idle only after a delay.
        let settles = self.random.one_in(8);
        let mode = if settles || self.random.one_in(3) {
            RDWR
        } else {
            WRONLY
        };
        let mut play = vec![self.hold(scene, slot, mode)];
        if settles {
            play.push(Op::new(Verb::Idle, &["settled"], &[]));
        }
        if self.random.one_in(2) {
            play.push(Self::plain(Verb::Checkpoint));
        }
        if !settles && self.random.one_in(3) {
            play.push(self.held_write(slot));
        }
        play.push(self.draw_free());
        if self.random.one_in(5) {
            play.push(Self::plain(Verb::KillWorker));
        }
        play.push(Self::plain(Verb::Checkpoint));
        play.push(Self::plain(Verb::CheckViews));
        play
    }

    /// Makes a mark that is freed by the daemon, or stays until gc.
    fn play_mark(&mut self, scene: &DrawContext<'_>, slot: u64) -> Vec<Op> {
        let mut play = vec![
            Self::plain(Verb::Idle),
            self.hold(scene, slot, WRONLY),
            self.held_write(slot),
        ];
        for _ in 0..1 + self.random.below(4) {
            play.push(self.draw(Verb::Unlink, scene));
        }
        play.push(match self.random.below(3) {
            0 => Op::new(Verb::Free, &["keep-last"], &[self.random.below(3)]),
            _ => Self::plain(Verb::Idle),
        });
        play.push(Self::plain(Verb::Checkpoint));
        play.push(Self::plain(Verb::CheckViews));
        play
    }

    /// Frees the guard of a restore.
    fn play_guard(&mut self, scene: &DrawContext<'_>, slot: u64) -> Vec<Op> {
        let path = self.past(scene);
        vec![
            self.hold(scene, slot, WRONLY),
            self.held_write(slot),
            Op::new(Verb::RestorePaths, &[&path], &[self.random.below(20)]),
            Op::new(Verb::Free, &["now"], &[0]),
            Self::plain(Verb::Checkpoint),
            Self::plain(Verb::CheckViews),
        ]
    }

    /// Deletes a checkpoint that is then freed for the next one.
    fn play_limited(&mut self, scene: &DrawContext<'_>, slot: u64) -> Vec<Op> {
        vec![
            Self::plain(Verb::LimitedCheckpoint),
            self.hold(scene, slot, WRONLY),
            Op::new(Verb::Free, &["rmdir"], &[0]),
            Self::plain(Verb::LimitedCheckpoint),
            Self::plain(Verb::CheckViews),
        ]
    }

    /// Changes files after a synced checkpoint, replaces the daemon, and cuts the power.
    fn play_cut(&mut self, scene: &DrawContext<'_>, slot: u64) -> Vec<Op> {
        let mut play = vec![
            self.hold(scene, slot, WRONLY),
            Self::plain(Verb::SyncedCheckpoint),
        ];
        for _ in 0..3 + self.random.below(6) {
            let verbs = [
                Verb::Put,
                Verb::Write,
                Verb::Append,
                Verb::Truncate,
                Verb::Unlink,
                Verb::Rename,
            ];
            let verb = *self.random.pick(&verbs).expect("the list is not empty");
            play.push(self.draw(verb, scene));
        }
        play.push(self.held_write(slot));
        match self.random.below(8) {
            0..=2 => play.push(Self::plain(Verb::KillWorker)),
            3 | 4 => play.push(Self::plain(Verb::Remount)),
            5 => play.push(Self::plain(Verb::Kill)),
            6 => play.push(self.draw_free()),
            _ => {}
        }
        if self.random.one_in(2) {
            let path = self.existing(scene, PathKind::File);
            if self.random.one_in(2) {
                play.push(Op::new(Verb::Open, &[&path], &[slot, RDONLY]));
            }
            play.push(Op::new(Verb::Fsync, &[], &[slot]));
        }
        play.push(Self::plain(Verb::Cut));
        play
    }

    /// Frees checkpoints with hashes, packs the journal, and replaces the daemon.
    fn play_verify(&mut self, scene: &DrawContext<'_>) -> Vec<Op> {
        let mut play = Vec::new();
        for _ in 0..2 + self.random.below(3) {
            play.push(self.draw(Verb::Put, scene));
            play.push(Self::plain(Verb::Checkpoint));
        }
        play.push(Self::plain(Verb::Idle));
        play.push(Op::new(Verb::Free, &["keep-last"], &[0]));
        play.push(Op::new(Verb::Verify, &[], &[1, self.random.below(2)]));
        if self.random.one_in(2) {
            play.push(Self::plain(Verb::Idle));
        }
        play.push(Self::plain(Verb::KillWorker));
        play.push(Op::new(Verb::Verify, &[], &[1, self.random.below(2)]));
        play
    }
}
