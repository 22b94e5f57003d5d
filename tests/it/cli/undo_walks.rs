//! Random operations, and undo to each of them: history and tree equal their state right after it.

use std::collections::BTreeMap;
use std::fs;

use super::support::Sandbox;
use crate::common::random::{is_long, told_seed};
use ckptfs_api::{
    ChangeTags, CheckpointOptions, Client, Delete, ListOperations, PinCheckpoint, Query, Reason,
    RestoreOptions, Retag, StateName, UndoOptions, UndoWalk, VerbError, VerbResult,
};

/// Operations in a run, and random undo targets.
const STEPS: usize = 30;
const WALKS: usize = 15;
/// Checkpoints with distinct content.
const WRITES: usize = 4;

/// A sequence that depends on its seed alone (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % end as u64) as usize
    }
}

/// State that an operation can change: the tree, and requested checkpoints with tags, note and pin.
/// Guards are not compared.
#[derive(Debug, Clone, PartialEq, Eq)]
struct HistoryState {
    checkpoints: BTreeMap<u64, (Vec<String>, String, Option<String>)>,
    tree: String,
}

struct World {
    sandbox: Sandbox,
    client: Option<Client>,
    random: Random,
}

impl World {
    fn new(seed: u64) -> World {
        let sandbox = Sandbox::new();
        sandbox.file("p/file", "0");
        sandbox.ckptfs(&["mount", "p"]).ok();
        World {
            sandbox,
            client: None,
            random: Random(seed),
        }
    }

    fn client(&mut self) -> &mut Client {
        let store = self.sandbox.path.join("p/.ckptfs");
        self.client.get_or_insert_with(|| {
            Client::connect(fs::File::open(store).expect("the store")).expect("the daemon")
        })
    }

    fn see(&mut self) -> HistoryState {
        let all = self.client().ask(Query::default()).expect("a list");
        let asked = all
            .into_iter()
            .filter(|one| !matches!(one.reason, Reason::Guard { .. }));
        let checkpoints = asked
            .map(|one| (one.id.0, (one.tags, one.note, one.pinned)))
            .collect();
        HistoryState {
            checkpoints,
            tree: fs::read_to_string(self.sandbox.path.join("p/file")).expect("the file"),
        }
    }

    fn newest(&mut self) -> u64 {
        self.client()
            .ask(ListOperations {
                before: None,
                limit: 1,
            })
            .expect("a list")
            .first()
            .map_or(0, |operation| operation.number)
    }

    fn some_id(&mut self) -> Option<StateName> {
        let ids: Vec<u64> = self.see().checkpoints.into_keys().collect();
        let one = self.random.below(ids.len().max(1));
        ids.get(one).map(|id| StateName(id.to_string()))
    }

    /// Performs a random operation. Refused ones (a pin, a tag in use, nothing to redo) do not
    /// count.
    fn operate(&mut self) -> VerbResult<()> {
        let (kind, number) = (self.random.below(12), self.random.below(4));
        let tag = format!("t{number}");
        let walk = |walk| UndoOptions {
            walk,
            skip: false,
            force: true,
            dry_run: false,
        };
        let Some(id) = self.some_id().filter(|_| kind > 2) else {
            return self
                .client()
                .ask(CheckpointOptions {
                    note: format!("note {kind}"),
                    ..CheckpointOptions::default()
                })
                .map(drop);
        };
        let client = self.client();
        match kind {
            3 | 4 => client
                .ask(RestoreOptions {
                    to: id,
                    paths: Vec::new(),
                    dry_run: false,
                    times: None,
                })
                .map(drop),
            5 => client
                .ask(Delete {
                    state: id,
                    now: false,
                })
                .map(drop),
            6 => client
                .ask(PinCheckpoint {
                    state: id,
                    reason: (number > 0).then_some(tag),
                })
                .map(drop),
            7 | 8 => client
                .ask(ChangeTags {
                    state: id,
                    retag: Retag {
                        add: vec![tag],
                        remove: Vec::new(),
                        force: number > 1,
                    },
                })
                .map(drop),
            9 => client
                .ask(ChangeTags {
                    state: StateName(tag.clone()),
                    retag: Retag {
                        remove: vec![tag],
                        ..Retag::default()
                    },
                })
                .map(drop),
            10 => client.ask(walk(UndoWalk::Undo(1 + number))).map(drop),
            _ => client.ask(walk(UndoWalk::Redo(1 + number % 2))).map(drop),
        }
    }

    fn disturb(&mut self) {
        let how = self.random.below(16);
        if how < 2 {
            self.client = None;
            if how == 0 {
                self.sandbox.kill_daemons();
            } else {
                self.sandbox.ckptfs(&["umount", "p"]).ok();
            }
            self.sandbox.ckptfs(&["mount", "p"]).ok();
        }
    }
}

fn walked(seed: u64) {
    let mut world = World::new(seed);
    for content in 1..=WRITES {
        fs::write(world.sandbox.path.join("p/file"), content.to_string()).expect("a write");
        world
            .client()
            .ask(CheckpointOptions::default())
            .expect("a checkpoint");
    }
    // A write is not an operation and is not undone: from here on only restores change the tree.
    let mut states: BTreeMap<u64, HistoryState> = BTreeMap::from([(WRITES as u64, world.see())]);
    for _ in 0..STEPS {
        let refused: Option<VerbError> = world.operate().err();
        let known = [
            "pinned",
            "tag-taken",
            "unknown-tag",
            "unknown-checkpoint",
            "too-far",
            "ambiguous",
        ];
        assert!(
            refused
                .as_ref()
                .is_none_or(|why| known.contains(&why.code.to_string().as_str())),
            "seed {seed}: {refused:?}"
        );
        let newest = world.newest();
        let seen = world.see();
        states.insert(newest, seen);
        world.disturb();
    }
    assert!(
        states.len() > STEPS / 2,
        "seed {seed}: only {} operations",
        states.len()
    );
    for _ in 0..WALKS {
        let numbers: Vec<u64> = states.keys().copied().collect();
        let to = numbers[world.random.below(numbers.len())];
        let options = UndoOptions {
            walk: UndoWalk::To(to),
            skip: false,
            force: true,
            dry_run: false,
        };
        let undone = world
            .client()
            .ask(options)
            .unwrap_or_else(|why| panic!("seed {seed}: to {to}: {why}"));
        assert_eq!(undone.stopped, None, "seed {seed}: to {to}");
        let seen = world.see();
        assert_eq!(
            seen,
            states[&to],
            "seed {seed}: to {to} from {:?}, by {undone:?}",
            numbers.last()
        );
        let newest = world.newest();
        states.insert(newest, seen);
        world.disturb();
    }
}

#[test]
fn every_state_is_reached_from_every_other() {
    let usual = 1..=if is_long() { 200 } else { 2 };
    let seeds = told_seed().map_or(usual, |seed| seed..=seed);
    seeds.for_each(walked);
}
