//! Every kind of conflict: its name, that nothing changes without a policy, and the result of each
//! policy.

use std::fs;
use std::path::Path;

use super::support::{conflicts, done_by, lines, merge, same};
use crate::common::command::sh;
use crate::common::tree::tree;
use crate::common::{Variant, for_each_variant};

/// A conflict. Each result lists the tree in lines of `PATH=content`, directories with a trailing
/// `/`; an empty result means that the merge is still refused.
struct Case {
    what: &'static str,
    base: &'static str,
    theirs: &'static str,
    ours: &'static str,
    conflicts: &'static [&'static str],
    with_ours: &'static [&'static str],
    with_theirs: &'static [&'static str],
    markers: &'static [&'static str],
    keep_both: &'static [&'static str],
}

const REFUSED: &[&str] = &[];

const CASES: &[Case] = &[
    Case {
        what: "lines of a text",
        base: "echo a > f",
        theirs: "echo t > f",
        ours: "echo o > f",
        conflicts: &["f: content"],
        with_ours: &["f=o"],
        with_theirs: &["f=t"],
        markers: &["f=<<<<<<< live|o|||||||| checkpoint 1|a|=======|t|>>>>>>> 2"],
        keep_both: &["f=o", "f.2=t"],
    },
    Case {
        what: "bytes that are not text",
        base: "printf 'a\\0' > f",
        theirs: "printf 't\\0' > f",
        ours: "printf 'o\\0' > f",
        conflicts: &["f: content"],
        with_ours: &["f=o\0"],
        with_theirs: &["f=t\0"],
        markers: REFUSED,
        keep_both: &["f=o\0", "f.2=t\0"],
    },
    Case {
        what: "where a symbolic link leads",
        base: "ln -s a l",
        theirs: "ln -sfn t l",
        ours: "ln -sfn o l",
        conflicts: &["l: content"],
        with_ours: &["l->o"],
        with_theirs: &["l->t"],
        markers: REFUSED,
        keep_both: &["l->o", "l.2->t"],
    },
    Case {
        what: "removed there, changed here",
        base: "echo a > f",
        theirs: "rm f",
        ours: "echo o > f",
        conflicts: &["f: removed by theirs"],
        with_ours: &["f=o"],
        with_theirs: &["x"],
        markers: REFUSED,
        keep_both: &["f=o"],
    },
    Case {
        what: "removed here, changed there",
        base: "echo a > f",
        theirs: "echo t > f",
        ours: "rm f",
        conflicts: &["f: removed by ours"],
        with_ours: &["x"],
        with_theirs: &["f=t"],
        markers: REFUSED,
        keep_both: &["f=t"],
    },
    Case {
        what: "renamed here and there",
        base: "echo a > f",
        theirs: "mv f t",
        ours: "mv f o",
        conflicts: &["o: moved"],
        with_ours: &["o=a"],
        with_theirs: &["t=a"],
        markers: REFUSED,
        keep_both: &["o=a", "t=a"],
    },
    Case {
        what: "two files at one name",
        base: "true",
        theirs: "echo t > f",
        ours: "echo o > f",
        conflicts: &["f: name"],
        with_ours: &["f=o"],
        with_theirs: &["f=t"],
        markers: REFUSED,
        keep_both: &["f=o", "f.2=t"],
    },
    Case {
        what: "a directory here, a file there",
        base: "true",
        theirs: "echo t > f",
        ours: "mkdir f; echo o > f/o",
        conflicts: &["f: name"],
        with_ours: &["f/", "f/o=o"],
        with_theirs: &["f=t"],
        markers: REFUSED,
        keep_both: &["f/", "f.2=t", "f/o=o"],
    },
    Case {
        what: "a file here, a directory there",
        base: "true",
        theirs: "mkdir f; echo t > f/t",
        ours: "echo o > f",
        conflicts: &["f: name", "f/t: directory by ours"],
        with_ours: &["f=o"],
        with_theirs: &["f/", "f/t=t"],
        markers: REFUSED,
        keep_both: &["f=o", "f.2/", "f.2/t=t"],
    },
    Case {
        what: "permissions",
        base: "echo a > f; chmod 644 f",
        theirs: "chmod 600 f",
        ours: "chmod 640 f",
        conflicts: &["f: mode"],
        with_ours: &["f=a 640"],
        with_theirs: &["f=a 600"],
        markers: REFUSED,
        keep_both: &["f=a 640", "f.2=a 600"],
    },
    Case {
        what: "permissions of a directory",
        base: "mkdir d",
        theirs: "chmod 700 d",
        ours: "chmod 750 d",
        conflicts: &["d: mode"],
        with_ours: &["d/ 750"],
        with_theirs: &["d/ 700"],
        markers: REFUSED,
        keep_both: REFUSED,
    },
    Case {
        what: "permissions there, content here",
        base: "echo a > f",
        theirs: "chmod 600 f",
        ours: "echo o > f",
        conflicts: &[],
        with_ours: &["f=o 600"],
        with_theirs: &["f=o 600"],
        markers: &["f=o 600"],
        keep_both: &["f=o 600"],
    },
    Case {
        what: "owner",
        base: "echo a > f",
        theirs: "chown 7:7 f",
        ours: "chown 8:8 f",
        conflicts: &["f: owner"],
        with_ours: &["f=a uid8"],
        with_theirs: &["f=a uid7"],
        markers: REFUSED,
        keep_both: &["f=a uid8", "f.2=a uid7"],
    },
    Case {
        what: "extended attribute",
        base: "echo a > f; setfattr -n user.a -v 1 f; setfattr -n user.b -v 1 f",
        theirs: "setfattr -n user.a -v t f; setfattr -n user.b -v t f",
        ours: "setfattr -n user.a -v o f",
        conflicts: &["f: xattr"],
        with_ours: &["f=a a:o b:t"],
        with_theirs: &["f=a a:t b:t"],
        markers: REFUSED,
        keep_both: &["f=a a:o b:t", "f.2=a a:t b:t"],
    },
    Case {
        what: "a directory removed there with something new in it here",
        base: "mkdir d; echo a > d/a",
        theirs: "rm -r d",
        ours: "echo o > d/o",
        conflicts: &["d: directory by theirs"],
        with_ours: &["d/", "d/o=o"],
        with_theirs: &["x"],
        markers: REFUSED,
        keep_both: &["d/", "d/o=o"],
    },
    Case {
        what: "a directory removed here with something new in it there",
        base: "mkdir d; echo a > d/a",
        theirs: "echo t > d/t",
        ours: "rm -r d",
        conflicts: &["d/t: directory by ours"],
        with_ours: &["x"],
        with_theirs: &["d/", "d/t=t"],
        markers: REFUSED,
        keep_both: &["d/", "d/t=t"],
    },
    Case {
        what: "directories moved into each other",
        base: "mkdir a b",
        theirs: "mv a b/",
        ours: "mv b a/",
        conflicts: &["a: cycle", "a/b: cycle"],
        with_ours: &["a/", "a/b/"],
        with_theirs: &["b/", "b/a/"],
        markers: REFUSED,
        keep_both: REFUSED,
    },
    Case {
        what: "a hard link there, content here",
        base: "echo a > f",
        theirs: "ln f g",
        ours: "echo o > f",
        conflicts: &[],
        with_ours: &["f=o", "g=o"],
        with_theirs: &["f=o", "g=o"],
        markers: &["f=o", "g=o"],
        keep_both: &["f=o", "g=o"],
    },
    Case {
        what: "each removed another name of a file",
        base: "echo a > f; ln f g",
        theirs: "rm g",
        ours: "rm f",
        conflicts: &["g: moved"],
        with_ours: &["g=a"],
        with_theirs: &["f=a"],
        markers: REFUSED,
        keep_both: &["f=a", "g=a"],
    },
    Case {
        what: "names that differ by case only",
        base: "true",
        theirs: "echo t > name",
        ours: "echo o > NAME",
        conflicts: &[],
        with_ours: &["NAME=o", "name=t"],
        with_theirs: &["NAME=o", "name=t"],
        markers: &["NAME=o", "name=t"],
        keep_both: &["NAME=o", "name=t"],
    },
];

/// Returns the tree in the lines of the cases.
fn told(root: &Path) -> Vec<String> {
    let script = "find . -mindepth 1 ! -path './.ckptfs*' ! -path './.snapshots*' -printf '%y %m %U %l\\t%P\\n' | LC_ALL=C sort -t\"\t\" -k2";
    let line = |line: &str| {
        let (attributes, path) = line.split_once('\t').expect("a path");
        let words: Vec<&str> = attributes.split(' ').collect();
        let mut told = match words[0] {
            "d" => format!("{path}/"),
            "l" => format!("{path}->{}", words[3]),
            _ => {
                let content = fs::read_to_string(root.join(path)).expect("a file");
                format!(
                    "{path}={}",
                    content.trim_end_matches('\n').replace('\n', "|")
                )
            }
        };
        if words[0] != "l" && !["644", "755"].contains(&words[1]) {
            told += &format!(" {}", words[1]);
        }
        if words[2] != "0" {
            told += &format!(" uid{}", words[2]);
        }
        for name in ["a", "b"] {
            let script =
                format!("getfattr -h --only-values -n user.{name} '{path}' 2> /dev/null || true");
            let value = sh(root, &script);
            if !value.is_empty() {
                told += &format!(" {name}:{value}");
            }
        }
        told
    };
    sh(root, script).lines().map(line).collect()
}

/// A mount per case would be slow: each case has a directory in one tree, which is merged
/// separately.
fn every_kind_of_conflict(v: Variant) {
    let all = |script: fn(&Case) -> &'static str| {
        let one = |(number, case): (usize, &Case)| {
            format!(
                "(mkdir -p {number}; cd {number}; touch x; {})\n",
                script(case)
            )
        };
        CASES.iter().enumerate().map(one).collect::<String>()
    };
    let rig = lines(
        v,
        &all(|case| case.base),
        &all(|case| case.theirs),
        &all(|case| case.ours),
    );
    let root = rig.path().to_owned();
    for (number, case) in CASES.iter().enumerate() {
        let dir = root.join(number.to_string());
        let before = tree(&root);
        let here = number.to_string();
        let (merged, done) = merge(&rig, &["--dry-run", &here]);
        let named: Vec<String> = case
            .conflicts
            .iter()
            .map(|line| format!("{number}/{line}"))
            .collect();
        assert_eq!(conflicts(&merged), named, "{}", case.what);
        assert_eq!(done, case.conflicts.is_empty(), "{}", case.what);
        if !done {
            let (merged, done) = merge(&rig, &[&here]);
            assert!(
                !done && merged["refused"] == true && merged["guard"].is_null(),
                "{}",
                case.what
            );
            same(&root, &before);
        }
        let policies = [
            ("--ours", case.with_ours),
            ("--theirs", case.with_theirs),
            ("--markers", case.markers),
            ("--keep-both", case.keep_both),
        ];
        for (policy, wanted) in policies {
            let (merged, done) = done_by(&rig, &[policy, &here]);
            assert_eq!(
                done,
                !wanted.is_empty(),
                "{}, {policy}: {merged}",
                case.what
            );
            let mut wanted: Vec<String> = wanted.iter().map(|line| (*line).to_owned()).collect();
            if done {
                wanted.retain(|line| line != "x");
                wanted.push("x=".to_owned());
                let mut now = told(&dir);
                now.sort();
                wanted.sort();
                assert_eq!(now, wanted, "{}, {policy}", case.what);
            }
            if !merged["guard"].is_null() {
                rig.mount.ok(&["undo"]);
            }
            same(&root, &before);
        }
    }
}

for_each_variant! { xfs => every_kind_of_conflict }
