//! Merges of three trees in memory, by the code under test and by the model.
//!
//! The input is a list of steps as in `run.rs`: tree 0 is the base, 1 `ours`, 2 `theirs`. Content
//! consists of lines, and each writing verb changes one: `write` replaces it, `punch` inserts one
//! before it, `truncate` deletes it, `append` adds one. `copy` saves a file as an editor does, by
//! renaming a new file over it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::run::{Step, shrink, steps, text};
use super::state::{ModelState, merged};
use super::three::{Merged, merge};
use crate::common::random::{count, seed};
use crate::model::expected::expected;
use crate::model::generate::{DrawContext, Generator, Random};
use crate::model::observe::{StampTimes, compare};
use crate::model::ops::{Op, Verb, bytes};
use crate::model::tree::{Body, Model, OpResult};

/// Limits for the shrinking of one difference, and for the number of differences reported.
const SHRINK: Duration = Duration::from_secs(4);
const TOLD_MAX: usize = 6;
const WEIGHTS: &[(u64, Verb)] = &[
    (4, Verb::Create),
    (10, Verb::Put),
    (10, Verb::Write),
    (5, Verb::Append),
    (5, Verb::Truncate),
    (5, Verb::Punch),
    (8, Verb::Copy),
    (8, Verb::Unlink),
    (10, Verb::Mkdir),
    (5, Verb::Rmdir),
    (16, Verb::Rename),
    (4, Verb::Exchange),
    (5, Verb::Link),
    (3, Verb::Symlink),
    (1, Verb::Mkfifo),
    (4, Verb::Chmod),
    (3, Verb::Chown),
    (4, Verb::SetXattr),
    (2, Verb::RemoveXattr),
];

/// The outcome of a merge.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Clean,
    Conflict,
    Unclear(&'static str),
}

fn edit(model: &mut Model, op: &Op) -> OpResult<()> {
    let n = |index| op.number(index);
    let path = bytes(op.path(0));
    let Some(id) = model.file(&path, op.verb == Verb::Put)? else {
        let id = model.make(&path, Body::File(Arc::default()), 0o644)?;
        fill(model, id, n(1));
        return Ok(());
    };
    let content = model.tree.node(id).content().cloned().unwrap_or_default();
    let lines: Vec<&[u8]> = content.split_inclusive(|byte| *byte == b'\n').collect();
    let at = (n(0) % (lines.len() as u64 + 1)) as usize;
    let line = format!("{}-{}\n", op.verb as u8, n(0)).into_bytes();
    let mut new: Vec<&[u8]> = lines.clone();
    match op.verb {
        Verb::Put => {
            fill(model, id, n(1));
            return Ok(());
        }
        Verb::Write | Verb::Copy if at < new.len() => new[at] = &line,
        Verb::Punch => new.insert(at, &line),
        Verb::Truncate if at < new.len() => drop(new.remove(at)),
        _ => new.push(&line),
    }
    let new = new.concat();
    if op.verb == Verb::Copy {
        let beside = [&path[..], b"~"].concat();
        let made = model.make(&beside, Body::File(Arc::default()), 0o644)?;
        set(model, made, new);
        return model.rename(&beside, &path, false, false);
    }
    set(model, id, new);
    Ok(())
}

fn set(model: &mut Model, id: u64, content: Vec<u8>) {
    model.node_mut(id).body = Body::File(content.into());
    model.touch(id);
}

/// Sets some lines, in one of 16 cases binary content.
fn fill(model: &mut Model, id: u64, seed: u64) {
    let lines = (0..seed % 9).map(|line| format!("{seed}.{line}\n"));
    let mut content = lines.collect::<String>().into_bytes();
    if seed % 16 == 7 {
        content.push(0);
    }
    set(model, id, content);
}

fn carry_out(model: &mut Model, op: &Op) {
    let is_edit = matches!(
        op.verb,
        Verb::Put | Verb::Write | Verb::Append | Verb::Punch | Verb::Truncate | Verb::Copy
    );
    // Operations that fail have no effect.
    let _ = match op.verb {
        _ if is_edit => edit(model, op),
        // Whether a change of the group alone is a separate property is unspecified.
        Verb::Chown => {
            let op = Op::new(Verb::Chown, &[op.path(0)], &[op.number(0), op.number(0)]);
            expected(
                model,
                &mut StampTimes::default(),
                &op,
                &bytes(op.path(0)),
                &[],
            )
        }
        _ => {
            let (path, second) = (bytes(op.path(0)), bytes(op.path(1)));
            expected(model, &mut StampTimes::default(), op, &path, &second)
        }
    };
}

/// Returns the base and the two trees derived from it.
fn three(list: &[Step]) -> [Model; 3] {
    let mut base = Model::new();
    let on = |number: usize| list.iter().filter(move |step| step.on == number);
    for op in on(0).filter_map(|step| step.op.as_ref()) {
        carry_out(&mut base, op);
    }
    let sides = [1, 2].map(|number| {
        let mut side = Model {
            tree: base.tree.clone(),
            counter: base.counter.apart(),
            held: BTreeSet::new(),
        };
        for op in on(number).filter_map(|step| step.op.as_ref()) {
            carry_out(&mut side, op);
        }
        side
    });
    let [ours, theirs] = sides;
    [base, ours, theirs]
}

/// Runs a list. Fails if code and model differ.
fn once(list: &[Step]) -> Result<Outcome, String> {
    let states = three(list).map(|model| ModelState(model.tree.reachable()));
    let [base, ours, theirs] = &states;
    let told =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| merged(base, ours, theirs)));
    let told = told
        .map_err(|_| "the code panics".to_owned())?
        .map_err(|errno| format!("the code returns {errno}"))?;
    match (merge(&base.0, &ours.0, &theirs.0), told) {
        (Merged::Unclear(why), _) => Ok(Outcome::Unclear(why)),
        (Merged::Conflict(_), Err(_)) => Ok(Outcome::Conflict),
        (Merged::Conflict(clashes), Ok(sight)) => {
            let paths: Vec<String> = sight
                .iter()
                .map(|(path, seen)| format!("{}({})", path.escape_ascii(), seen.ino))
                .collect();
            Err(format!(
                "only the model has a conflict: {clashes:?}; the code {paths:?}"
            ))
        }
        (Merged::Clean(tree), Err(conflicts)) => {
            let paths: Vec<String> = tree
                .paths()
                .iter()
                .map(|(path, id)| format!("{}({id})", path.escape_ascii()))
                .collect();
            Err(format!(
                "only the code has a conflict: {conflicts}; the model {paths:?}"
            ))
        }
        (Merged::Clean(tree), Ok(sight)) => compare(
            "the merge",
            &tree,
            &sight,
            &mut StampTimes::default(),
            &BTreeSet::new(),
        )
        .map(|()| Outcome::Clean),
    }
}

fn drawn(seed: u64) -> Vec<Step> {
    let mut random = Random::new(seed.wrapping_mul(0x9e37_79b9) ^ 0x7ee1);
    let mut list = Vec::new();
    let mut generator = Generator::of(seed, WEIGHTS);
    let counts = [
        4 + random.below(14),
        1 + random.below(6),
        1 + random.below(6),
    ];
    for (on, count) in counts.into_iter().enumerate() {
        for _ in 0..count {
            let [base, ours, theirs] = three(&list);
            let model = [base, ours, theirs]
                .into_iter()
                .nth(on)
                .expect("one of three");
            let scene = DrawContext {
                tree: &model.tree,
                past: Vec::new(),
                set_ids: false,
                held: Vec::new(),
            };
            let op = generator.next(&scene);
            // In some cases both sides do the same.
            if on == 1 && random.one_in(6) {
                let (on, op) = (2, Some(op.clone()));
                list.push(Step { on, op });
            }
            list.push(Step { on, op: Some(op) });
        }
    }
    list
}

/// `CKPTFS_SEED` and `CKPTFS_CASES` select the cases; `CKPTFS_REPLAY=FILE` runs one list.
#[test]
fn merges_are_those_of_the_model() {
    if let Ok(file) = std::env::var("CKPTFS_REPLAY") {
        let list = std::fs::read_to_string(&file).expect("the list can be read");
        println!("{:?}", once(&steps(&list)));
        return;
    }
    let first = seed("merges_are_those_of_the_model", 1);
    let cases = count("CKPTFS_CASES", 3000, 200_000);
    let (mut clean, mut conflicts, mut unclear) = (0_u64, 0_u64, 0_u64);
    let (mut told, mut kinds) = (Vec::new(), BTreeSet::new());
    for seed in first..first + cases {
        let list = drawn(seed);
        match once(&list) {
            Ok(Outcome::Clean) => clean += 1,
            Ok(Outcome::Conflict) => conflicts += 1,
            Ok(Outcome::Unclear(_)) => unclear += 1,
            Err(problem) => {
                let (list, problem) = shrink(list, problem, SHRINK, |list| once(list).err());
                let verbs = list
                    .iter()
                    .filter_map(|step| Some((step.on, step.op.as_ref()?.verb as u8)));
                if kinds.insert(verbs.collect::<Vec<_>>()) {
                    told.push(format!("CKPTFS_SEED={seed}:\n{}{problem}\n", text(&list)));
                }
                if told.len() >= TOLD_MAX {
                    break;
                }
            }
        }
    }
    println!("{clean} clean, {conflicts} in conflict, {unclear} unclear");
    assert!(told.is_empty(), "{}", told.join("\n"));
    assert!(clean > cases / 20 && conflicts > cases / 20 && unclear < cases / 10);
}
