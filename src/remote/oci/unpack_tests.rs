//! Whiteouts.

use super::*;

/// Reads layers with these files.
fn read(layers: &[Vec<String>]) -> ImageTree {
    let mut tree = ImageTree::default();
    for (layer, names) in layers.iter().enumerate() {
        for (number, name) in names.iter().enumerate() {
            let entry = untar::TarEntry {
                name: name.clone().into_bytes(),
                kind: Some(Kind::File),
                link: Vec::new(),
                mode: 0o644,
                uid: 0,
                gid: 0,
                rdev: 0,
                size: 0,
                mtime: sys::Time { sec: 0, nsec: 0 },
                xattrs: Vec::new(),
            };
            tree.take(layer, number as u64, entry)
                .expect("it is harmless");
        }
    }
    tree
}

fn names(tree: &ImageTree) -> Vec<String> {
    let names = tree.names.keys();
    names
        .map(|name| String::from_utf8_lossy(name).into_owned())
        .collect()
}

/// Each whiteout searched all names of its own layer: 30,000 of them kept `pull` busy for minutes,
/// and an image of a few kilobytes can have millions.
#[test]
fn whiteouts_of_one_directory_look_through_it_once() {
    const MANY: usize = 300;
    let files = (0..MANY).map(|number| format!("d/x/{number}"));
    for (whiteout, dir) in [
        ("d/.wh..wh..opq", "d"),
        (".wh.d", "d"),
        ("d/.wh.x", "d/x"),
        ("d/x/.wh..wh..opq", "d/x"),
    ] {
        let own = files.clone().chain((0..MANY).map(|_| whiteout.to_owned()));
        let tree = read(&[own.collect()]);
        assert_eq!(tree.names.len(), MANY + 2, "{whiteout}");
        assert_eq!(tree.hidden.get(dir.as_bytes()), Some(&0), "{whiteout}");
    }
}

#[test]
fn a_whiteout_hides_what_is_lower_wherever_it_stands_in_its_layer() {
    let layer = |names: &[&str]| {
        names
            .iter()
            .map(|&name| name.to_owned())
            .collect::<Vec<_>>()
    };
    let lower = layer(&["d/a", "d/e/b", "f"]);
    for upper in [
        &["d/new", "d/.wh..wh..opq", "d/.wh..wh..opq"][..],
        &["d/.wh..wh..opq", "d/new", "d/.wh..wh..opq"],
        &[
            "d/new",
            "d/e/.wh..wh..opq",
            "d/.wh.a",
            "d/.wh.e",
            "d/.wh..wh..opq",
        ],
        &["d/new", ".wh.d", "d/.wh.a", ".wh.d"],
    ] {
        let tree = read(&[lower.clone(), layer(upper)]);
        assert_eq!(names(&tree), ["d", "d/new", "f"], "{upper:?}");
        // The next layer hides the entries of this one.
        let next = read(&[lower.clone(), layer(upper), layer(&[".wh.d"])]);
        assert_eq!(names(&next), ["f"], "{upper:?}");
    }
}
