//! Random work, checkpoints, pins, runs, restores and kills, compared with copies of each kept
//! state: only content of the tier is dropped, and views never show wrong content.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::story::ids;
use super::tiers::{assert_whole_but_dropped, configure, dropped};
use crate::common::random::{any_seed, is_long, seed};
use crate::common::space::noise;
use crate::common::tree::{Tree, tree};
use crate::common::{Rig, Variant, for_each_variant, tree_of};

for_each_variant! { xfs => random_work_under_tiers }

const STEPS: usize = 120;
const STEPS_LONG: usize = 4000;
const DIRS: [&str; 5] = ["src", "node_modules", "a", "a/node_modules", "a/out"];
const NAMES: [&str; 4] = ["one", "two", "three.tmp", "four"];
/// The patterns of the tier.
const PATTERNS: &str = r#"["node_modules", "*.tmp", "a/out/"]"#;

struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % limit
    }

    fn path(&mut self) -> PathBuf {
        Path::new(DIRS[self.below(DIRS.len())]).join(NAMES[self.below(NAMES.len())])
    }
}

/// Implemented independently of the code under test.
fn in_tier(path: &Path) -> bool {
    let text = path.to_str().unwrap();
    text.split('/')
        .any(|name| name == "node_modules" || name.ends_with(".tmp"))
        || text.starts_with("a/out/")
}

struct Story {
    rig: Rig,
    random: Random,
    kept: BTreeMap<u64, Tree>,
    pinned: BTreeSet<u64>,
    log: Vec<String>,
}

fn random_work_under_tiers(v: Variant) {
    let seed = seed(&format!("random work under tiers on {v:?}"), any_seed());
    let steps = if is_long() { STEPS_LONG } else { STEPS };
    let rig = v.start();
    configure(&rig.mount, PATTERNS, "1ms");
    let mut story = Story {
        rig,
        random: Random(seed | 1),
        kept: BTreeMap::new(),
        pinned: BTreeSet::new(),
        log: Vec::new(),
    };
    for step in 0..steps {
        story.step();
        if step % 20 == 19 {
            story.check();
        }
    }
    story.one_that_is_dropped();
    let lost: usize = story.check();
    assert!(lost > 0, "nothing was dropped: {:#?}", story.log);
    assert_eq!(
        story.rig.mount.json(&["verify", "--deep"])["findings"],
        json!([])
    );
    println!(
        "{v:?}: {} checkpoints, {lost} versions dropped",
        story.kept.len()
    );
}

impl Story {
    fn step(&mut self) {
        match self.random.below(20) {
            0..=11 => self.work(),
            12..=14 => self.checkpoint(),
            15 => self.pin(),
            16..=17 => {
                self.log.push("gc".into());
                self.rig.mount.ok(&["gc"]);
            }
            18 => self.restore(),
            _ => {
                self.log.push("kill".into());
                self.rig.mount.kill();
                self.rig.mount.remount();
            }
        }
    }

    /// An operation that fails on a missing or conflicting path has no effect.
    fn work(&mut self) {
        let root = self.rig.path().to_owned();
        let (path, other) = (self.random.path(), self.random.path());
        let what = self.random.below(8);
        let content = noise(1 + self.random.below(9000), self.random.0);
        self.log.push(format!("work {what} {path:?} {other:?}"));
        let _ = match what {
            0..=2 => fs::create_dir_all(root.join(&path).parent().unwrap())
                .and_then(|()| fs::write(root.join(&path), content)),
            3 => fs::remove_file(root.join(&path)),
            4 | 5 => fs::rename(root.join(&path), root.join(&other)),
            6 => fs::hard_link(root.join(&path), root.join(&other)),
            _ if self.random.below(3) == 0 => fs::remove_dir_all(root.join(path.parent().unwrap())),
            _ => fs::write(root.join(&path), b""),
        };
    }

    /// Makes a version that is certainly dropped, because pins, empty files or chance may keep all
    /// others.
    fn one_that_is_dropped(&mut self) {
        let path = self.rig.path().join("src/last.tmp");
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, noise(5000, self.random.0)).unwrap();
        self.checkpoint();
        fs::remove_file(&path).unwrap();
        self.checkpoint();
        std::thread::sleep(std::time::Duration::from_millis(5));
        self.rig.mount.ok(&["gc"]);
    }

    fn checkpoint(&mut self) {
        let id = self.rig.mount.checkpoint();
        self.log.push(format!("checkpoint {id}"));
        self.kept.insert(id, tree(self.rig.path()));
    }

    fn some(&mut self) -> Option<u64> {
        let ids: Vec<u64> = self.kept.keys().copied().collect();
        (!ids.is_empty()).then(|| ids[self.random.below(ids.len())])
    }

    /// Pins only a checkpoint without dropped content, which must stay complete.
    fn pin(&mut self) {
        let Some(id) = self.some() else { return };
        if dropped(&tree_of(&self.rig.view(id))).is_empty() {
            self.log.push(format!("pin {id}"));
            self.rig.mount.ok(&["pin", &id.to_string()]);
            self.pinned.insert(id);
        }
    }

    fn restore(&mut self) {
        let Some(id) = self.some() else { return };
        let before = tree(self.rig.path());
        let answer = self.rig.mount.json(&["restore", &id.to_string()]);
        self.log.push(format!("restore {id}: {answer}"));
        let Some(guard) = answer["guard"].as_u64() else {
            return assert_eq!(
                answer["changes"],
                serde_json::json!([]),
                "only a restore without changes has no guard"
            );
        };
        self.kept.insert(guard, before.clone());
        let after = tree(self.rig.path());
        let units: Vec<PathBuf> = answer["dropped"].as_array().map_or(Vec::new(), |list| {
            list.iter()
                .map(|path| PathBuf::from(path.as_str().unwrap()))
                .collect()
        });
        let spared = |path: &Path| units.iter().any(|unit| path.starts_with(unit));
        let strip = |tree: &Tree, wanted: bool| -> BTreeMap<PathBuf, String> {
            // Links are not compared, because a link to a retained name is another file now.
            let of = |(path, node): (&PathBuf, &crate::common::NodeInfo)| {
                (
                    path.clone(),
                    format!("{:?} {:o} {}", node.kind, node.mode, node.size),
                )
            };
            tree.iter()
                .filter(|(path, _)| spared(path) == wanted)
                .map(of)
                .collect()
        };
        assert_eq!(
            strip(&after, false),
            strip(&self.kept[&id], false),
            "{:#?}",
            self.log
        );
        let there: Vec<(PathBuf, String)> = strip(&before, true)
            .into_iter()
            .filter(|(path, _)| !after.contains_key(path))
            .collect();
        assert!(
            there.is_empty(),
            "versions that must stay were removed: {there:?}\n{:#?}",
            self.log
        );
        let stayed = |tree: &Tree| strip(tree, true).into_iter().collect::<BTreeSet<_>>();
        let (was, is) = (stayed(&before), stayed(&after));
        let changed: Vec<_> = was.symmetric_difference(&is).collect();
        assert!(
            changed.is_empty(),
            "versions that must stay were changed: {changed:?}\n{:#?}",
            self.log
        );
    }

    /// Returns the number of versions dropped from kept checkpoints.
    fn check(&mut self) -> usize {
        assert!(
            self.kept.keys().all(|id| ids(&self.rig.mount).contains(id)),
            "{:#?}",
            self.log
        );
        let mut lost = 0;
        for (id, then) in &self.kept {
            let now = tree_of(&self.rig.view(*id));
            let shown = format!("{id}: {:#?}", self.log);
            assert_whole_but_dropped(&shown, &now, then);
            let gone = dropped(&now);
            lost += gone.len();
            assert!(gone.iter().all(|path| in_tier(path)), "{gone:?}: {shown}");
            assert!(
                gone.is_empty() || !self.pinned.contains(id),
                "{gone:?}: {shown}"
            );
        }
        lost
    }
}
