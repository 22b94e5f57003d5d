//! Comparison of whole trees in everything visible to a program.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};

use super::command::{TOOL_SECONDS, succeeds, tool};

/// The maximum number of listed differences.
const SHOWN_DIFFERENCES: usize = 40;

/// The attributes to compare, and the names to skip.
#[derive(Clone, Debug)]
pub struct TreeOpts {
    /// Modification times, in nanoseconds, of everything except directories.
    pub mtime: bool,
    /// Modification times of directories.
    pub dir_mtime: bool,
    /// Owner and group.
    pub owner: bool,
    /// Extended attributes, including ACLs and capabilities.
    pub xattrs: bool,
    /// Hard links: which names share an inode.
    pub links: bool,
    /// Names directly below the root to skip.
    pub ignore: Vec<String>,
}

impl Default for TreeOpts {
    /// Compares everything, without the names of ckptfs itself.
    fn default() -> TreeOpts {
        let ignore = vec![".ckptfs".to_owned(), ".snapshots".to_owned()];
        TreeOpts {
            mtime: true,
            dir_mtime: true,
            owner: true,
            xattrs: true,
            links: true,
            ignore,
        }
    }
}

/// The type of a file, with its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// A regular file: its content as a hash and its first bytes.
    File {
        hash: blake3::Hash,
        head: String,
    },
    /// A regular file of a view whose content a retention tier has dropped.
    Dropped,
    Dir,
    /// A symbolic link and its target.
    Symlink(PathBuf),
    Fifo,
    Socket,
    /// A character device and its number.
    Char(u64),
    /// A block device and its number.
    Block(u64),
}

/// One file of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeInfo {
    /// Its type and content.
    pub kind: NodeKind,
    /// Permission bits with setuid, setgid and sticky.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Bytes; 0 for a directory, whose size depends on the filesystem.
    pub size: u64,
    /// Seconds and nanoseconds.
    pub mtime: (i64, i64),
    /// Names and values.
    pub xattrs: BTreeMap<OsString, Vec<u8>>,
    /// The first of its paths in sort order, for each of its other names.
    pub linked_to: Option<PathBuf>,
    /// Inode number; never compared.
    pub ino: u64,
}

/// A tree by path.
pub type Tree = BTreeMap<PathBuf, NodeInfo>;

/// Reads the whole tree at `root`, whose own path is empty. Panics at the first unreadable file.
pub fn tree_of(root: &Path) -> Tree {
    tree_without(root, &[])
}

/// As [`tree_of`], without our own names.
pub fn tree(root: &Path) -> Tree {
    tree_without(root, &TreeOpts::default().ignore)
}

/// As [`tree_of`], without these names directly below the root.
pub fn tree_without(root: &Path, ignore: &[String]) -> Tree {
    try_tree_without(root, ignore).unwrap_or_else(|problem| panic!("{problem}"))
}

/// As [`tree_without`]; returns the first error as text.
pub fn try_tree_without(root: &Path, ignore: &[String]) -> Result<Tree, String> {
    let mut nodes = BTreeMap::new();
    let mut pending = vec![PathBuf::new()];
    while let Some(path) = pending.pop() {
        let node = read_node(&root.join(&path))
            .map_err(|error| format!("cannot read {:?} of {}: {error}", path, root.display()))?;
        if node.kind == NodeKind::Dir {
            let failed =
                |error: io::Error| format!("cannot list {:?} of {}: {error}", path, root.display());
            for entry in fs::read_dir(root.join(&path)).map_err(failed)? {
                let name = entry.map_err(failed)?.file_name();
                let ignored = path.as_os_str().is_empty()
                    && ignore.iter().any(|ignored| name == ignored.as_str());
                if !ignored {
                    pending.push(path.join(name));
                }
            }
        }
        nodes.insert(path, node);
    }
    note_links(&mut nodes);
    Ok(nodes)
}

fn read_node(path: &Path) -> io::Result<NodeInfo> {
    let meta = fs::symlink_metadata(path)?;
    let kind = meta.file_type();
    let kind = if kind.is_dir() {
        NodeKind::Dir
    } else if kind.is_symlink() {
        NodeKind::Symlink(fs::read_link(path)?)
    } else if kind.is_fifo() {
        NodeKind::Fifo
    } else if kind.is_socket() {
        NodeKind::Socket
    } else if kind.is_char_device() {
        NodeKind::Char(meta.rdev())
    } else if kind.is_block_device() {
        NodeKind::Block(meta.rdev())
    } else {
        match fs::read(path) {
            Err(error)
                if error.raw_os_error() == Some(rustix::io::Errno::NODATA.raw_os_error()) =>
            {
                NodeKind::Dropped
            }
            content => {
                let content = content?;
                let head = String::from_utf8_lossy(&content[..content.len().min(32)]).into_owned();
                NodeKind::File {
                    hash: blake3::hash(&content),
                    head,
                }
            }
        }
    };
    Ok(NodeInfo {
        size: if kind == NodeKind::Dir {
            0
        } else {
            meta.size()
        },
        kind,
        mode: meta.mode() & 0o7777,
        uid: meta.uid(),
        gid: meta.gid(),
        mtime: (meta.mtime(), meta.mtime_nsec()),
        xattrs: read_xattrs(path)?,
        linked_to: None,
        ino: meta.ino(),
    })
}

fn read_xattrs(path: &Path) -> io::Result<BTreeMap<OsString, Vec<u8>>> {
    let mut names = vec![0_u8; 64 << 10];
    let length = match rustix::fs::llistxattr(path, &mut names[..]) {
        Ok(length) => length,
        Err(rustix::io::Errno::OPNOTSUPP) => 0,
        Err(error) => return Err(error.into()),
    };
    let mut xattrs = BTreeMap::new();
    for name in names[..length]
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
    {
        let mut value = vec![0_u8; 64 << 10];
        let length = rustix::fs::lgetxattr(path, name, &mut value[..])?;
        value.truncate(length);
        xattrs.insert(OsString::from_vec(name.to_vec()), value);
    }
    Ok(xattrs)
}

/// Links the later names of a file to its first. Inode numbers of two trees differ, but the groups
/// must not.
fn note_links(nodes: &mut Tree) {
    let mut first: BTreeMap<u64, PathBuf> = BTreeMap::new();
    for (path, node) in nodes
        .iter_mut()
        .filter(|(_, node)| node.kind != NodeKind::Dir)
    {
        match first.get(&node.ino) {
            Some(other) => node.linked_to = Some(other.clone()),
            None => drop(first.insert(node.ino, path.clone())),
        }
    }
}

/// Panics with a list of the differences unless both trees are equal in everything that `opts`
/// selects.
#[track_caller]
pub fn assert_same_tree(a: &Path, b: &Path, opts: &TreeOpts) {
    let differences = compare(
        &tree_without(a, &opts.ignore),
        &tree_without(b, &opts.ignore),
        opts,
    );
    assert!(differences.is_empty(), "{}", report(a, b, &differences));
}

/// As [`assert_same_tree`], with an expected tree read before.
#[track_caller]
pub fn assert_tree_is(path: &Path, expected: &Tree, opts: &TreeOpts) {
    let differences = compare(&tree_without(path, &opts.ignore), expected, opts);
    assert!(
        differences.is_empty(),
        "{}",
        report(path, Path::new("the expected tree"), &differences)
    );
}

/// Compares everything of two trees read before.
#[track_caller]
pub fn assert_same(found: &Tree, expected: &Tree) {
    let opts = TreeOpts {
        ignore: Vec::new(),
        ..TreeOpts::default()
    };
    let differences = compare(found, expected, &opts);
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// Returns the names in a directory, sorted.
#[track_caller]
pub fn names(dir: impl AsRef<Path>) -> Vec<String> {
    let dir = dir.as_ref();
    let list = fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    let mut names: Vec<String> = list.map(|entry| name(entry.expect("an entry"))).collect();
    names.sort();
    names
}

/// Returns one line for each difference of two trees.
pub fn compare(a: &Tree, b: &Tree, opts: &TreeOpts) -> Vec<String> {
    let ignored = |path: &Path| {
        path.iter()
            .next()
            .is_some_and(|top| opts.ignore.iter().any(|name| top == name.as_str()))
    };
    let mut differences = Vec::new();
    for (path, left) in a.iter().filter(|(path, _)| !ignored(path)) {
        match b.get(path) {
            None => differences.push(format!("{path:?}: only in the first")),
            Some(right) => compare_nodes(path, left, right, opts, &mut differences),
        }
    }
    let missing = b
        .keys()
        .filter(|path| !ignored(path) && !a.contains_key(*path));
    differences.extend(missing.map(|path| format!("{path:?}: only in the second")));
    differences
}

fn compare_nodes(
    path: &Path,
    a: &NodeInfo,
    b: &NodeInfo,
    opts: &TreeOpts,
    differences: &mut Vec<String>,
) {
    let mut check =
        |counts: bool, what: &str, left: &dyn std::fmt::Debug, right: &dyn std::fmt::Debug| {
            let (left, right) = (format!("{left:?}"), format!("{right:?}"));
            if counts && left != right {
                differences.push(format!("{path:?}: {what}: {left} | {right}"));
            }
        };
    let timed = if a.kind == NodeKind::Dir {
        opts.dir_mtime
    } else {
        opts.mtime
    };
    check(true, "kind or content", &a.kind, &b.kind);
    check(true, "size", &a.size, &b.size);
    check(
        true,
        "mode",
        &format_args!("{:o}", a.mode),
        &format_args!("{:o}", b.mode),
    );
    check(opts.owner, "owner", &(a.uid, a.gid), &(b.uid, b.gid));
    check(timed, "mtime", &a.mtime, &b.mtime);
    check(opts.links, "linked to", &a.linked_to, &b.linked_to);
    for name in a
        .xattrs
        .keys()
        .chain(b.xattrs.keys().filter(|name| !a.xattrs.contains_key(*name)))
    {
        check(
            opts.xattrs,
            &format!("xattr {name:?}"),
            &shown(a, name),
            &shown(b, name),
        );
    }
}

/// Returns the value of an attribute as text, with unprintable bytes escaped.
fn shown(node: &NodeInfo, name: &OsString) -> Option<String> {
    node.xattrs
        .get(name)
        .map(|value| value.escape_ascii().to_string())
}

fn report(a: &Path, b: &Path, differences: &[String]) -> String {
    let mut text = format!(
        "{} differences between {} and {}:\n",
        differences.len(),
        a.display(),
        b.display()
    );
    for difference in differences.iter().take(SHOWN_DIFFERENCES) {
        let _ = writeln!(text, "  {difference}");
    }
    text
}

/// Makes a plain copy for a later comparison: `cp -a --reflink=auto` of everything except the names
/// of ckptfs itself.
///
/// Creates `to`, with the mode, owner, times and attributes of `from`.
pub fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap_or_else(|error| panic!("cannot create {}: {error}", to.display()));
    let ours = [".ckptfs", ".snapshots"];
    let names: Vec<OsString> = fs::read_dir(from)
        .expect("the tree can be listed")
        .map(|entry| entry.expect("the tree can be listed").file_name())
        .collect();
    let mut copy = tool("cp", &["-a", "--reflink=auto", "--"]);
    copy.args(
        names
            .iter()
            .filter(|name| !ours.iter().any(|our| name == our)),
    )
    .arg(to)
    .current_dir(from);
    if names.iter().any(|name| !ours.iter().any(|our| name == our)) {
        succeeds(&mut copy, TOOL_SECONDS);
    }
    copy_attributes(from, to);
}

/// Copies the attributes of a directory. `cp` would descend into the skipped directories.
fn copy_attributes(from: &Path, to: &Path) {
    let node = read_node(from).expect("the tree can be read");
    lchown(to, Some(node.uid), Some(node.gid)).expect("the owner can be copied");
    for (name, value) in &node.xattrs {
        rustix::fs::setxattr(to, name, value, rustix::fs::XattrFlags::empty())
            .expect("an attribute can be copied");
    }
    fs::set_permissions(to, fs::Permissions::from_mode(node.mode)).expect("the mode can be copied");
    let time = rustix::fs::Timespec {
        tv_sec: node.mtime.0,
        tv_nsec: node.mtime.1,
    };
    let times = rustix::fs::Timestamps {
        last_access: time,
        last_modification: time,
    };
    rustix::fs::utimensat(rustix::fs::CWD, to, &times, rustix::fs::AtFlags::empty())
        .expect("the times can be copied");
}
