//! `--hash`: equal contents are stored once, within a project and across projects. Sharing is
//! verified independently, by the BLAKE3 of every file and the extents that FIEMAP returns.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::support::{ImportRig, Rng};
use crate::common::command::sh;
use crate::common::tree::{assert_same, tree};
use crate::common::{Variant, for_each_variant};
use ckptfs_sys as sys;

/// Makes a package of some files, identical in every project.
fn package(dir: &Path, number: u64) {
    let mut rng = Rng::new(1000 + number);
    std::fs::create_dir_all(dir.join("lib")).expect("mkdir");
    for file in 0..12 {
        let path = if file % 3 == 0 {
            dir.join(format!("f{file}.js"))
        } else {
            dir.join(format!("lib/f{file}.js"))
        };
        let bytes: Vec<u8> = (0..1 + rng.below(30_000))
            .map(|_| rng.below(256) as u8)
            .collect();
        std::fs::write(path, bytes).expect("write");
    }
    // Every package has the same licence and an empty file.
    std::fs::write(dir.join("LICENSE"), "do what you want\n".repeat(100)).expect("write");
    std::fs::write(dir.join(".npmignore"), "").expect("write");
}

/// Four projects with shared packages, as in the seed's table.
const PROJECTS: [&[u64]; 4] = [
    &[1, 2, 3],
    &[1, 2, 3, 4],
    &[1, 2, 4, 5, 6, 7],
    &[2, 3, 5, 8, 9],
];

fn projects(root: &Path) {
    for (number, packages) in (1..).zip(PROJECTS) {
        for package_number in packages {
            package(
                &root.join(format!("p{number}/node_modules/pkg{package_number}")),
                *package_number,
            );
        }
        std::fs::write(
            root.join(format!("p{number}/main.js")),
            format!("project {number}\n"),
        )
        .expect("write");
    }
}

/// Returns the non-empty files below a directory, without the store.
fn files(root: &Path) -> Vec<PathBuf> {
    let (mut found, mut open) = (Vec::new(), vec![root.to_owned()]);
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(&dir).expect("list").flatten() {
            let kind = entry.file_type().expect("type");
            if kind.is_dir() && entry.file_name() != ".ckptfs" {
                open.push(entry.path());
            } else if kind.is_file() && entry.metadata().expect("stat").len() > 0 {
                found.push(entry.path());
            }
        }
    }
    found
}

/// Returns hash and size of each file.
fn hashes(root: &Path) -> BTreeMap<PathBuf, (blake3::Hash, u64)> {
    let hash = |path: PathBuf| {
        let bytes = std::fs::read(&path).expect("read");
        (path, (blake3::hash(&bytes), bytes.len() as u64))
    };
    files(root).into_iter().map(hash).collect()
}

/// Returns the physical address of a file's first byte; btrfs stores small files inline in its
/// trees.
fn place(path: &Path) -> Option<u64> {
    let file = File::open(path).expect("open");
    sys::fsync(&file).expect("fsync");
    sys::allocation(&file)
        .expect("fiemap")
        .placed
        .first()
        .map(|placed| placed.physical)
}

/// Asserts that every content in these trees is on disk once.
fn assert_once(trees: &[PathBuf]) {
    let mut places: HashMap<blake3::Hash, HashSet<u64>> = HashMap::new();
    for tree in trees {
        for (path, (hash, _)) in hashes(tree) {
            places.entry(hash).or_default().extend(place(&path));
        }
    }
    assert!(
        places.values().filter(|places| !places.is_empty()).count() > 20,
        "most contents have their own extents"
    );
    let twice: Vec<_> = places
        .iter()
        .filter(|(_, places)| places.len() > 1)
        .collect();
    assert!(
        !places.is_empty() && twice.is_empty(),
        "{} of {} contents are stored twice",
        twice.len(),
        places.len()
    );
}

fn number(value: &Value, name: &str) -> u64 {
    value["contents"][name]
        .as_u64()
        .unwrap_or_else(|| panic!("{name} in {value}"))
}

/// Returns number and bytes of new contents, of duplicates within this tree, and of previously
/// known contents.
fn counted(from: &Path, known: &mut HashSet<blake3::Hash>) -> [(u64, u64); 3] {
    let ([mut new, mut duplicate, mut before], mut own) = ([(0, 0); 3], HashSet::new());
    for (hash, size) in hashes(from).into_values() {
        let counter = if known.contains(&hash) {
            &mut before
        } else if own.insert(hash) {
            &mut new
        } else {
            &mut duplicate
        };
        (counter.0, counter.1) = (counter.0 + 1, counter.1 + size);
    }
    known.extend(own);
    [new, duplicate, before]
}

fn projects_that_share_packages_share_their_extents(v: Variant) {
    let place = ImportRig::new(v);
    let root = place.image.path();
    projects(root);
    // The source is on another filesystem, like a download, and shares no extents.
    let source = crate::common::Image::of(crate::common::Fs::Tmpfs);
    let mut known: HashSet<blake3::Hash> = HashSet::new();
    let mut trees = Vec::new();
    let mut rates = Vec::new();
    for project in 1..=4 {
        let (name, into) = (format!("p{project}"), format!("t{project}"));
        sh(
            root,
            &format!("cp -a {name} {}/; ", source.path().display()),
        );
        let from = source.path().join(&name);
        let mut arguments = vec![from.to_str().expect("text"), "--into", &into, "--hash"];
        let others: Vec<String> = trees
            .iter()
            .map(|tree: &PathBuf| tree.display().to_string())
            .collect();
        if !others.is_empty() {
            arguments.push("--with");
            arguments.extend(others.iter().map(String::as_str));
        }
        let made = place.import(&arguments)["checkpoints"][0].clone();
        // An independent count.
        let [new, duplicate, before] = counted(&from, &mut known);
        let both = |files: &str, bytes: &str| (number(&made, files), number(&made, bytes));
        assert_eq!(both("new_contents", "new_bytes"), new, "{made}");
        assert_eq!(
            both("duplicate_files", "duplicate_bytes"),
            duplicate,
            "{made}"
        );
        assert_eq!(both("known_files", "known_bytes"), before, "{made}");
        assert_eq!(number(&made, "unshared_files"), 0, "{made}");
        assert_eq!(
            (&made["copied_bytes"], &made["copied_because"]),
            (&new.1.into(), &"the source is on another filesystem".into()),
            "{made}"
        );
        assert_same(&tree(&root.join(&into)), &tree(&from));
        rates.push((before.1 + duplicate.1) * 100 / (new.1 + duplicate.1 + before.1));
        trees.push(root.join(into));
    }
    assert_once(&trees);
    // The second project of the seed's table shares 71.5 % of its bytes with the first.
    assert!(rates[1] > 60 && rates[0] < 10, "{rates:?}");
    // Control: the test detects unshared contents.
    sh(root, "cp -a --reflink=never t1 plain");
    assert!(
        std::panic::catch_unwind(|| assert_once(&[root.join("t1"), root.join("plain")])).is_err()
    );
    // The files are independent: a write to one does not change the other.
    let (one, other) = (
        root.join("t1/node_modules/pkg1/LICENSE"),
        root.join("t2/node_modules/pkg1/LICENSE"),
    );
    std::fs::write(one, "mine").expect("write");
    assert!(
        std::fs::read_to_string(other)
            .expect("read")
            .starts_with("do what")
    );
}

fn into_a_tree_that_is_served_content_is_shared_too(v: Variant) {
    let place = ImportRig::new(v);
    package(&place.project().join("pkg1"), 1);
    place.import(&["project", "--into", "tree", "--hash"]);
    let mut mount = place.mount();
    package(&place.project().join("again/pkg1"), 1);
    package(&place.project().join("pkg2"), 2);
    let made = place.import(&["project", "--into", "tree", "--hash"])["checkpoints"][0].clone();
    // All thirteen files of the first package are known, and the licence of the second.
    assert_eq!(
        (
            number(&made, "known_files"),
            number(&made, "new_contents"),
            &made["copied_bytes"]
        ),
        (14, 12, &0.into()),
        "{made}"
    );
    place.assert_equal();
    // A file changed after it was hashed is not taken for its old content.
    sh(
        &place.tree(),
        "printf x | dd of=pkg1/f0.js conv=notrunc bs=1 2>/dev/null",
    );
    package(&place.project().join("more/pkg1"), 1);
    place.import(&["project", "--into", "tree", "--hash"]);
    place.assert_equal();
    mount.umount();
    assert_once(&[place.tree()]);
}

fn without_reflink_the_same_content_is_counted_and_copied(v: Variant) {
    let place = ImportRig::new(v);
    package(&place.project().join("a"), 1);
    package(&place.project().join("b"), 1);
    let made = place.import(&["project", "--into", "tree", "--hash"])["checkpoints"][0].clone();
    let shares = v.fs.has_reflink();
    assert_eq!(
        (
            number(&made, "unshared_files"),
            number(&made, "duplicate_files")
        ),
        if shares { (0, 13) } else { (13, 0) },
        "{made}"
    );
    place.assert_equal();
    let ino = |path: &str| {
        std::os::unix::fs::MetadataExt::ino(
            &std::fs::metadata(place.tree().join(path)).expect("stat"),
        )
    };
    assert_ne!(
        ino("a/LICENSE"),
        ino("b/LICENSE"),
        "two files of a tree are never merged"
    );
}

for_each_variant! { xfs => into_a_tree_that_is_served_content_is_shared_too }
for_each_variant! { all => without_reflink_the_same_content_is_counted_and_copied }

#[test]
fn projects_that_share_packages_share_their_extents_on_xfs() {
    on(crate::common::Fs::Xfs);
}

#[test]
fn projects_that_share_packages_share_their_extents_on_btrfs() {
    on(crate::common::Fs::Btrfs);
}

fn on(fs: crate::common::Fs) {
    let variant = Variant {
        fs,
        io: crate::common::Io::Daemon,
    };
    match variant.unavailable() {
        Some(reason) => crate::common::skip(&reason),
        None => projects_that_share_packages_share_their_extents(variant),
    }
}
