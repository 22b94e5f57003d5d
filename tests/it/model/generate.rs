//! Random operations from one seed. The model is consulted so that most of them succeed.

use super::ops::{Op, Verb};
use super::tree::{Body, Id, Tree};
use super::world::{HANDLES, HANDLES_BUSY, MAPS, VIEWS};

const NAMES: &[&str] = &["a", "b", "c", "d", "e", "f", "odd"];
const NODES_MAX: usize = 50;
const SNAPS_MAX: usize = 6;
const MODES: &[u64] = &[
    0o644, 0o600, 0o755, 0o700, 0o444, 0o4755, 0o2755, 0o1777, 0o2711,
];

/// splitmix64.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    pub fn one_in(&mut self, bound: u64) -> bool {
        self.below(bound) == 0
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        let index = self.below(from.len() as u64) as usize;
        from.get(index)
    }
}

/// The state from which operations are drawn.
pub struct DrawContext<'a> {
    /// The live tree.
    pub tree: &'a Tree,
    /// The trees of its checkpoints.
    pub past: Vec<&'a Tree>,
    /// Set-id bits are allowed.
    pub set_ids: bool,
    /// Open handles among those that stay open.
    pub held: Vec<usize>,
}

pub struct Generator {
    pub(super) random: Random,
    /// Each seed prefers some operations and omits others, so that rare ones are combined.
    weights: Vec<(u64, Verb)>,
    /// Number of names in use.
    names: usize,
    /// Operations that follow the last one drawn, in reverse order.
    pub(super) pending: Vec<Op>,
    /// One in this many operations starts a play (`plays.rs`); 0 disables plays.
    plays: u64,
}

/// The expected target of a path.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PathKind {
    File,
    Dir,
    Any,
}

const WEIGHTS: &[(u64, Verb)] = &[
    (5, Verb::Create),
    (14, Verb::Put),
    (10, Verb::Write),
    (5, Verb::Append),
    (5, Verb::Truncate),
    (9, Verb::Unlink),
    (9, Verb::Mkdir),
    (4, Verb::Rmdir),
    (16, Verb::Rename),
    (2, Verb::RenameNoReplace),
    (4, Verb::Exchange),
    (6, Verb::Link),
    (3, Verb::Symlink),
    (2, Verb::Mkfifo),
    (1, Verb::Mksock),
    (4, Verb::Chmod),
    (3, Verb::Chown),
    (4, Verb::Utimens),
    (4, Verb::SetXattr),
    (2, Verb::RemoveXattr),
    (2, Verb::Punch),
    (3, Verb::Copy),
    (7, Verb::Open),
    (8, Verb::HandleWrite),
    (2, Verb::HandleTruncate),
    (2, Verb::HandleRead),
    (1, Verb::HandleChmod),
    (1, Verb::HandleUtimens),
    (4, Verb::OpenView),
    (4, Verb::ReadView),
    (1, Verb::Fsync),
    (4, Verb::Close),
    (2, Verb::Map),
    (5, Verb::Store),
    (1, Verb::Unmap),
    (12, Verb::Checkpoint),
    (1, Verb::SyncedCheckpoint),
    (1, Verb::NamedCheckpoint),
    (1, Verb::LimitedCheckpoint),
    (4, Verb::Restore),
    (3, Verb::RestorePaths),
    (5, Verb::Free),
    (2, Verb::Verify),
    (2, Verb::Remount),
    (3, Verb::Leave),
    (2, Verb::Kill),
    (4, Verb::KillWorker),
    (1, Verb::Idle),
    (2, Verb::ListSnapshots),
    (2, Verb::DryRestore),
    (6, Verb::CheckLive),
    (6, Verb::CheckStatus),
    (3, Verb::CheckDiff),
];

/// Random arguments of an operation.
struct OpArgs {
    size: u64,
    offset: u64,
    seed: u64,
    length: u64,
    mode: u64,
    handle: u64,
}

impl Generator {
    pub fn new(seed: u64) -> Generator {
        let mut generator = Generator::of(seed, WEIGHTS);
        generator.plays = 15 + generator.random.below(40);
        // In half of the runs only the process itself ends open handles.
        if generator.random.one_in(2) {
            generator
                .weights
                .retain(|(_, verb)| !matches!(verb, Verb::Remount | Verb::Leave | Verb::Kill));
        }
        generator
    }

    /// A generator with other weights.
    pub fn of(seed: u64, weights: &[(u64, Verb)]) -> Generator {
        let mut random = Random::new(seed);
        let names = 3 + random.below(NAMES.len() as u64 - 2) as usize;
        let needed = |verb| {
            matches!(
                verb,
                Verb::Put | Verb::Mkdir | Verb::Checkpoint | Verb::CheckLive | Verb::CheckStatus
            )
        };
        let factor = |random: &mut Random, verb| {
            if needed(verb) {
                2
            } else {
                [0, 1, 2, 2, 2, 5][random.below(6) as usize]
            }
        };
        let weights = weights
            .iter()
            .map(|(weight, verb)| (weight * factor(&mut random, *verb), *verb))
            .collect();
        Generator {
            random,
            weights,
            names,
            pending: Vec::new(),
            plays: 0,
        }
    }

    pub fn next(&mut self, scene: &DrawContext<'_>) -> Op {
        if let Some(op) = self.pending.pop() {
            return op;
        }
        if self.plays > 0 && self.random.one_in(self.plays) {
            self.play(scene);
            if let Some(op) = self.pending.pop() {
                return op;
            }
        }
        let mut verb = self.verb();
        if scene.past.len() > SNAPS_MAX
            && matches!(verb, Verb::Checkpoint | Verb::Restore | Verb::RestorePaths)
        {
            // Generators without `Free` delete instead.
            let free = self.weights.iter().any(|(_, verb)| *verb == Verb::Free);
            verb = if free { Verb::Free } else { Verb::Delete };
        }
        if scene.tree.nodes.len() > NODES_MAX
            && matches!(
                verb,
                Verb::Create | Verb::Mkdir | Verb::Mkfifo | Verb::Mksock | Verb::Symlink
            )
        {
            verb = Verb::Unlink;
        }
        let op = self.draw(verb, scene);
        self.checks_after(verb);
        if verb == Verb::Leave {
            let changes = 1 + self.random.below(6);
            for _ in 0..changes {
                let verb = self.verb();
                if verb.is_by_path() {
                    let op = self.draw(verb, scene);
                    self.pending.push(op);
                }
            }
        }
        op
    }

    fn verb(&mut self) -> Verb {
        let total = self.weights.iter().map(|(weight, _)| weight).sum();
        let mut left = self.random.below(total);
        for (weight, verb) in &self.weights {
            if left < *weight {
                return *verb;
            }
            left -= weight;
        }
        Verb::CheckLive
    }

    /// Adds a check of all views after most checkpoints. Not after all: a lookup records places in
    /// the daemon, which may hide bugs.
    fn checks_after(&mut self, verb: Verb) {
        let views = match verb {
            Verb::Checkpoint | Verb::NamedCheckpoint => !self.random.one_in(4),
            Verb::SyncedCheckpoint | Verb::LimitedCheckpoint => self.random.one_in(2),
            Verb::Restore | Verb::RestorePaths | Verb::Delete | Verb::Free => self.random.one_in(2),
            Verb::Remount | Verb::Kill | Verb::KillWorker => self.random.one_in(3),
            // Runs after the next mount.
            Verb::Leave => true,
            _ => false,
        };
        let live = matches!(verb, Verb::Restore | Verb::RestorePaths) && self.random.one_in(2);
        if live {
            self.pending.push(Op::new(Verb::CheckLive, &[], &[]));
        }
        if views {
            self.pending.push(Op::new(Verb::CheckViews, &[], &[]));
        }
    }

    pub(super) fn draw(&mut self, verb: Verb, scene: &DrawContext<'_>) -> Op {
        let drawn = self.numbers(scene);
        match verb {
            Verb::Put | Verb::Write | Verb::Append | Verb::Punch | Verb::Truncate | Verb::Copy => {
                self.draw_content(verb, scene, &drawn)
            }
            Verb::Chmod | Verb::Chown | Verb::Utimens | Verb::SetXattr | Verb::RemoveXattr => {
                self.draw_attributes(verb, scene, &drawn)
            }
            Verb::Open | Verb::Close | Verb::Map | Verb::Store | Verb::Unmap | Verb::Fsync => {
                self.draw_opened(verb, scene, &drawn)
            }
            Verb::HandleRead
            | Verb::HandleWrite
            | Verb::HandleTruncate
            | Verb::HandleChmod
            | Verb::HandleUtimens
            | Verb::OpenView
            | Verb::ReadView => self.draw_opened(verb, scene, &drawn),
            Verb::Free => self.draw_free(),
            Verb::Idle => Op::new(verb, &[], &[]),
            _ => self.draw_names(verb, scene, &drawn),
        }
    }

    /// Draws all arguments, whatever the operation needs.
    fn numbers(&mut self, scene: &DrawContext<'_>) -> OpArgs {
        let size = [0, 1, 100, 4096, 5000, 20_000, 70_000][self.random.below(7) as usize];
        let (offset, seed, length) = (
            self.random.below(size + 2),
            self.random.below(1000),
            self.random.below(9000) + 1,
        );
        let mode = MODES[self.random.below(MODES.len() as u64) as usize];
        let mode = if scene.set_ids { mode } else { mode & !0o6000 };
        let rarely = self.random.one_in(10);
        let handle = self.handle(rarely);
        OpArgs {
            size,
            offset,
            seed,
            length,
            mode,
            handle,
        }
    }

    /// Draws a handle, from those that stay open or from the others.
    pub(super) fn handle(&mut self, held: bool) -> u64 {
        let busy = HANDLES_BUSY as u64;
        if held {
            busy + self.random.below(HANDLES as u64 - busy)
        } else {
            self.random.below(busy)
        }
    }

    /// Operations on names and checkpoints.
    fn draw_names(&mut self, verb: Verb, scene: &DrawContext<'_>, drawn: &OpArgs) -> Op {
        match verb {
            Verb::Create | Verb::Mkfifo | Verb::Mksock => Op::new(
                verb,
                &[&self.fresh(scene)],
                &[[0o644, 0o600, 0o755][self.random.below(3) as usize]],
            ),
            Verb::Mkdir => Op::new(
                verb,
                &[&self.fresh(scene)],
                &[[0o755, 0o700, 0o500][self.random.below(3) as usize]],
            ),
            Verb::Symlink => Op::new(verb, &[&self.fresh(scene)], &[drawn.seed]),
            Verb::Unlink => Op::new(verb, &[&self.existing(scene, PathKind::Any)], &[]),
            Verb::Rmdir => Op::new(verb, &[&self.existing(scene, PathKind::Dir)], &[]),
            Verb::Rename | Verb::RenameNoReplace => {
                let to = if self.random.one_in(3) {
                    self.existing(scene, PathKind::Any)
                } else {
                    self.fresh(scene)
                };
                Op::new(verb, &[&self.existing(scene, PathKind::Any), &to], &[])
            }
            Verb::Exchange => Op::new(
                verb,
                &[
                    &self.existing(scene, PathKind::Any),
                    &self.existing(scene, PathKind::Any),
                ],
                &[],
            ),
            Verb::Link => Op::new(
                verb,
                &[&self.existing(scene, PathKind::File), &self.fresh(scene)],
                &[],
            ),
            Verb::RestorePaths => {
                let paths: Vec<String> = (0..=self.random.below(2))
                    .map(|_| self.past(scene))
                    .collect();
                let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
                Op::new(verb, &paths, &[self.random.below(20)])
            }
            _ => Op::new(verb, &[], &[self.random.below(20), self.random.below(20)]),
        }
    }

    fn draw_content(&mut self, verb: Verb, scene: &DrawContext<'_>, drawn: &OpArgs) -> Op {
        let OpArgs {
            size,
            offset,
            seed,
            length,
            ..
        } = *drawn;
        match verb {
            Verb::Put if self.random.one_in(2) => {
                Op::new(verb, &[&self.fresh(scene)], &[size, seed])
            }
            Verb::Put => Op::new(
                verb,
                &[&self.existing(scene, PathKind::File)],
                &[size, seed],
            ),
            Verb::Write => Op::new(
                verb,
                &[&self.existing(scene, PathKind::File)],
                &[offset, length, seed],
            ),
            Verb::Append => Op::new(
                verb,
                &[&self.existing(scene, PathKind::File)],
                &[length, seed],
            ),
            Verb::Punch => Op::new(
                verb,
                &[&self.existing(scene, PathKind::File)],
                &[offset, length],
            ),
            Verb::Truncate => Op::new(verb, &[&self.existing(scene, PathKind::File)], &[size]),
            Verb::Copy => Op::new(
                verb,
                &[
                    &self.existing(scene, PathKind::File),
                    &self.existing(scene, PathKind::File),
                ],
                &[self.random.below(5000), offset, length],
            ),
            _ => panic!("unexpected verb {verb:?}"),
        }
    }

    fn draw_attributes(&mut self, verb: Verb, scene: &DrawContext<'_>, drawn: &OpArgs) -> Op {
        let OpArgs { seed, mode, .. } = *drawn;
        match verb {
            Verb::Chmod => Op::new(verb, &[&self.anything(scene)], &[mode]),
            Verb::Chown => Op::new(
                verb,
                &[&self.anything(scene)],
                &[self.random.below(3) * 1000, self.random.below(3) * 500],
            ),
            Verb::Utimens => Op::new(
                verb,
                &[&self.anything(scene)],
                &[
                    self.random.below(2_000_000_000),
                    self.random.below(1_000_000_000),
                ],
            ),
            Verb::SetXattr => Op::new(
                verb,
                &[&self.anything(scene)],
                &[seed, self.random.below(60) + 1, seed],
            ),
            Verb::RemoveXattr => Op::new(verb, &[&self.anything(scene)], &[seed]),
            _ => panic!("unexpected verb {verb:?}"),
        }
    }

    /// Operations on handles and mappings.
    fn draw_opened(&mut self, verb: Verb, scene: &DrawContext<'_>, drawn: &OpArgs) -> Op {
        let OpArgs {
            size,
            offset,
            seed,
            length,
            mode,
            handle,
        } = *drawn;
        match verb {
            // Handles that stay open are not replaced.
            Verb::Open => Op::new(
                verb,
                &[&self.existing(scene, PathKind::File)],
                &[
                    if scene.held.contains(&(handle as usize)) {
                        handle % HANDLES_BUSY as u64
                    } else {
                        handle
                    },
                    self.random.below(4),
                ],
            ),
            Verb::HandleWrite => Op::new(verb, &[], &[handle, offset, length, seed]),
            Verb::HandleTruncate => Op::new(verb, &[], &[handle, size]),
            Verb::Map => Op::new(
                verb,
                &[&self.existing(scene, PathKind::File)],
                &[self.random.below(MAPS as u64)],
            ),
            Verb::Store => Op::new(
                verb,
                &[],
                &[
                    self.random.below(MAPS as u64),
                    self.random.below(5000),
                    self.random.below(50) + 1,
                    seed,
                ],
            ),
            Verb::HandleChmod => Op::new(verb, &[], &[handle, mode]),
            Verb::HandleUtimens => Op::new(
                verb,
                &[],
                &[
                    handle,
                    self.random.below(2_000_000_000),
                    self.random.below(1_000_000_000),
                ],
            ),
            Verb::OpenView => Op::new(
                verb,
                &[&self.past(scene)],
                &[self.random.below(VIEWS as u64), self.random.below(20)],
            ),
            Verb::ReadView => Op::new(verb, &[], &[self.random.below(VIEWS as u64)]),
            Verb::HandleRead | Verb::Fsync | Verb::Close => Op::new(verb, &[], &[handle]),
            Verb::Unmap => Op::new(verb, &[], &[self.random.below(MAPS as u64)]),
            _ => panic!("unexpected verb {verb:?}"),
        }
    }

    fn name(&mut self) -> &'static str {
        match self.random.below(120) {
            0 => "long",
            1 => "toolong",
            _ => NAMES[NAMES.len() - self.names..][self.random.below(self.names as u64) as usize],
        }
    }

    /// Returns a path in an existing directory; its name may exist.
    pub(super) fn fresh(&mut self, scene: &DrawContext<'_>) -> String {
        if self.random.one_in(15) {
            return format!("{}/{}", self.name(), self.name());
        }
        let dir = if self.random.one_in(3) {
            String::new()
        } else {
            self.existing(scene, PathKind::Dir)
        };
        let name = self.name();
        if dir.is_empty() || dir.matches('/').count() > 2 {
            name.to_owned()
        } else {
            format!("{dir}/{name}")
        }
    }

    /// Returns a path that usually exists and has the wanted type.
    pub(super) fn existing(&mut self, scene: &DrawContext<'_>, want: PathKind) -> String {
        let want = if self.random.one_in(20) {
            PathKind::Any
        } else {
            want
        };
        let fits = |id: Id| {
            let body = &scene.tree.node(id).body;
            want == PathKind::Any
                || matches!(
                    (body, want),
                    (Body::File(_), PathKind::File) | (Body::Dir(_), PathKind::Dir)
                )
        };
        let paths: Vec<String> = scene
            .tree
            .paths()
            .into_iter()
            .filter(|(path, id)| !path.is_empty() && fits(*id))
            .map(|(path, _)| token(&path))
            .collect();
        match self.random.pick(&paths) {
            Some(path) if !self.random.one_in(25) => path.clone(),
            _ => self.name().to_owned(),
        }
    }

    fn anything(&mut self, scene: &DrawContext<'_>) -> String {
        if self.random.one_in(12) {
            ".".to_owned()
        } else {
            self.existing(scene, PathKind::Any)
        }
    }

    /// Returns a path of a checkpoint or of the live tree.
    pub(super) fn past(&mut self, scene: &DrawContext<'_>) -> String {
        let from = match self.random.pick(&scene.past) {
            Some(snap) if !self.random.one_in(3) => snap.paths(),
            _ => scene.tree.paths(),
        };
        let paths: Vec<String> = from
            .keys()
            .filter(|path| !path.is_empty())
            .map(|path| token(path))
            .collect();
        self.random
            .pick(&paths)
            .cloned()
            .unwrap_or_else(|| "a".to_owned())
    }
}

/// Encodes a path for a list.
fn token(path: &[u8]) -> String {
    let names: Vec<String> = path
        .split(|byte| *byte == b'/')
        .map(|name| match name {
            _ if name.len() == 255 => "long".to_owned(),
            _ if name[0] == b'o' => "odd".to_owned(),
            _ => String::from_utf8_lossy(name).into_owned(),
        })
        .collect();
    names.join("/")
}
