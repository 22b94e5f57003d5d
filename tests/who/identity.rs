//! Which process it is: numbers that are used again, control groups.

use super::support::Stage;
use crate::common::command::sh;
use crate::common::{Variant, for_each_variant};

for_each_variant! { one => processes_are_told_apart_by_number_and_group }

fn processes_are_told_apart_by_number_and_group(v: Variant) {
    let stage = Stage::start(v, |dir| drop(sh(dir, "echo a > a; echo b > b; echo c > c")));
    stage.rig.mount.checkpoint();
    let (mut one, mut two) = (stage.begins("same"), stage.begins("same"));
    one.does("add('a', 1)");
    two.does("add('b', 1); add('c', 1)");
    let all = stage.rig.mount.json(&["status", "--by", "process"]);
    let pids: Vec<u64> = all["processes"].as_array().expect("processes").iter().map(|one| one["pid"].as_u64().expect("a number")).collect();
    assert!(pids.len() == 2 && pids.contains(&one.pid().into()) && pids.contains(&two.pid().into()), "{all}");
    assert_eq!(all["processes"][0]["parent"], std::process::id());
    stage.take_back(&[&two.pid().to_string()]);
    assert_eq!((stage.get("a"), stage.get("b"), stage.get("c")), ("a\n1".to_owned(), "b\n".to_owned(), "c\n".to_owned()));
}
