//! The shape of the source: import cycles between files, and the number of methods of a type.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use syn::visit::{self, Visit};

use super::{expect_none, files, read};

/// Maximum number of files in an import cycle.
const CIRCLE_MAX: usize = 6;
/// Maximum number of methods of a type, without those of traits.
const METHODS_MAX: usize = 40;
/// Maximum number of re-exports followed from one name.
const HOPS_MAX: usize = 8;

type Names = Vec<String>;

/// The paths, re-exports and methods of one file.
#[derive(Default)]
struct SourceFile {
    module: Names,
    /// Nesting depth of inline modules at the visitor's position.
    depth: usize,
    /// Paths as written. Those in inline modules are relative to the file.
    paths: Vec<Names>,
    exports: BTreeMap<String, Names>,
    methods: BTreeMap<String, usize>,
}

pub(super) fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute
                .parse_args::<syn::Path>()
                .is_ok_and(|path| path.is_ident("test"))
    })
}

/// Collects the paths of a `use`, each with the name it binds; `*` for a glob.
fn flatten(tree: &syn::UseTree, above: &Names, found: &mut Vec<(String, Names)>) {
    let with = |name: &syn::Ident| {
        above
            .iter()
            .cloned()
            .chain([name.to_string()])
            .collect::<Names>()
    };
    match tree {
        syn::UseTree::Path(path) => flatten(&path.tree, &with(&path.ident), found),
        syn::UseTree::Name(name) => found.push((name.ident.to_string(), with(&name.ident))),
        syn::UseTree::Rename(name) => found.push((name.rename.to_string(), with(&name.ident))),
        syn::UseTree::Glob(_) => found.push(("*".into(), above.clone())),
        syn::UseTree::Group(group) => group
            .items
            .iter()
            .for_each(|tree| flatten(tree, above, found)),
    }
}

impl SourceFile {
    /// Records a path. In an inline module, one `super` refers to the file itself.
    fn keep(&mut self, mut path: Names) {
        let inner = path
            .iter()
            .take_while(|name| *name == "super")
            .count()
            .min(self.depth);
        path.drain(..inner);
        if inner > 0 {
            path.insert(
                0,
                if path.first().is_some_and(|name| name == "super") {
                    "."
                } else {
                    "self"
                }
                .into(),
            );
        }
        path.retain(|name| name != ".");
        self.paths.push(path);
    }
}

impl<'ast> Visit<'ast> for SourceFile {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if item.content.is_some() && !is_test(&item.attrs) {
            self.depth += 1;
            visit::visit_item_mod(self, item);
            self.depth -= 1;
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let mut found = Vec::new();
        flatten(&item.tree, &Vec::new(), &mut found);
        for (name, path) in found {
            match item.vis {
                syn::Visibility::Inherited => self.keep(path),
                _ if self.depth == 0 => drop(self.exports.insert(name, path)),
                _ => {}
            }
        }
    }

    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.segments.len() > 1 && path.leading_colon.is_none() {
            self.keep(
                path.segments
                    .iter()
                    .map(|segment| segment.ident.to_string())
                    .collect(),
            );
        }
        visit::visit_path(self, path);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if let (None, syn::Type::Path(of)) = (&item.trait_, &*item.self_ty)
            && let Some(name) = of.path.segments.last()
        {
            let count = item
                .items
                .iter()
                .filter(
                    |item| matches!(item, syn::ImplItem::Fn(function) if !is_test(&function.attrs)),
                )
                .count();
            *self.methods.entry(name.ident.to_string()).or_default() += count;
        }
        visit::visit_item_impl(self, item);
    }
}

/// Returns the source by module, without test files.
fn source() -> BTreeMap<Names, SourceFile> {
    let is_of_tests = |path: &Path| {
        path.to_str()
            .is_some_and(|path| path.ends_with("tests.rs") || path.contains("/tests/"))
    };
    let mut found = BTreeMap::new();
    for path in files("src", "rs")
        .into_iter()
        .filter(|path| !is_of_tests(path))
    {
        let mut module: Names = path
            .with_extension("")
            .iter()
            .skip(1)
            .map(|name| name.to_string_lossy().into_owned())
            .collect();
        if module
            .last()
            .is_some_and(|name| ["mod", "lib"].contains(&name.as_str()))
        {
            module.pop();
        }
        if ["build", "main"].contains(&module.last().map_or("", String::as_str)) {
            continue;
        }
        let mut file = SourceFile {
            module: module.clone(),
            ..SourceFile::default()
        };
        file.visit_file(&syn::parse_file(&read(&path)).unwrap());
        found.insert(module, file);
    }
    found
}

/// Returns the file that a path resolves to, following re-exports.
fn target(
    source: &BTreeMap<Names, SourceFile>,
    from: &Names,
    path: &[String],
    hops: usize,
) -> Option<Names> {
    let (mut base, mut rest): (Names, &[String]) = match path.first()?.as_str() {
        "crate" => (from[..1].to_vec(), &path[1..]),
        "self" => (from.clone(), &path[1..]),
        "super" => (from.clone(), path),
        first if source.contains_key(&[from.as_slice(), &[first.to_owned()]].concat()) => {
            (from.clone(), path)
        }
        first => (vec![first.strip_prefix("ckptfs_")?.to_owned()], &path[1..]),
    };
    while rest.first().is_some_and(|name| name == "super") {
        base.pop();
        rest = &rest[1..];
    }
    while let Some(name) = rest.first() {
        let below = [base.as_slice(), std::slice::from_ref(name)].concat();
        // In sort order, submodules follow their module directly.
        let mut from_there = source.range(below.clone()..);
        if !from_there
            .next()
            .is_some_and(|(module, _)| module.starts_with(&below))
        {
            break;
        }
        (base, rest) = (below, &rest[1..]);
    }
    let file = source.get(&base)?;
    let again = rest
        .first()
        .and_then(|name| file.exports.get(name))
        .filter(|_| hops < HOPS_MAX);
    again
        .and_then(|again| {
            target(
                source,
                &base,
                &[again.as_slice(), &rest[1..]].concat(),
                hops + 1,
            )
        })
        .or(Some(base))
}

/// Returns the modules reachable from a module within its crate.
fn reached(edges: &BTreeMap<Names, BTreeSet<Names>>, from: &Names) -> BTreeSet<Names> {
    let (mut seen, mut open) = (BTreeSet::new(), vec![from.clone()]);
    while let Some(at) = open.pop() {
        let next = edges
            .get(&at)
            .into_iter()
            .flatten()
            .filter(|next| next[0] == from[0]);
        open.extend(
            next.filter(|next| seen.insert((*next).clone()))
                .cloned()
                .collect::<Vec<_>>(),
        );
    }
    seen
}

#[test]
fn circles_of_files_are_small() {
    let source = source();
    let edges: BTreeMap<Names, BTreeSet<Names>> = source
        .iter()
        .map(|(module, file)| {
            let to = file
                .paths
                .iter()
                .filter_map(|path| target(&source, &file.module, path, 0));
            (module.clone(), to.filter(|to| to != module).collect())
        })
        .collect();
    let reach: BTreeMap<&Names, BTreeSet<Names>> = edges
        .keys()
        .map(|module| (module, reached(&edges, module)))
        .collect();
    let circle = |module: &Names| -> Vec<String> {
        let there = reach[module]
            .iter()
            .filter(|other| reach.get(other).is_some_and(|back| back.contains(module)));
        there.map(|names| names.join("::")).collect()
    };
    let large: BTreeSet<Vec<String>> = edges
        .keys()
        .map(circle)
        .filter(|circle| circle.len() > CIRCLE_MAX)
        .collect();
    let offences: Vec<String> = large
        .iter()
        .map(|circle| format!("{}: {}", circle.len(), circle.join(", ")))
        .collect();
    expect_none(
        &format!("at most {CIRCLE_MAX} files import each other in a circle"),
        &offences,
    );
}

#[test]
fn no_type_has_very_many_methods() {
    let mut methods: BTreeMap<(String, String), usize> = BTreeMap::new();
    for (module, file) in source() {
        for (name, count) in file.methods {
            *methods.entry((module[0].clone(), name)).or_default() += count;
        }
    }
    let many = methods.iter().filter(|(_, count)| **count > METHODS_MAX);
    let offences: Vec<String> = many
        .map(|((layer, name), count)| format!("{layer}: {name} has {count}"))
        .collect();
    expect_none(
        &format!("a type has at most {METHODS_MAX} methods"),
        &offences,
    );
}

#[test]
fn paths_are_followed_to_the_files_that_define_what_they_name() {
    let parsed = |module: &[&str], code: &str| {
        let module: Names = module.iter().map(|name| (*name).to_owned()).collect();
        let mut file = SourceFile {
            module: module.clone(),
            ..SourceFile::default()
        };
        file.visit_file(&syn::parse_file(code).unwrap());
        (module, file)
    };
    let source: BTreeMap<Names, SourceFile> = [
        parsed(&["x"], "mod a; mod c;"),
        parsed(&["x", "a"], "mod b; pub use b::B; use crate::c::d::D; fn f() { b::g() }"),
        parsed(&["x", "a", "b"], "use super::super::c; pub struct B; impl B { fn one() {} fn two() {} } mod inner { use super::B; }"),
        parsed(&["x", "c"], "pub use crate::a::B as Other; #[cfg(test)] mod tests { use crate::a::b::B; }"),
        parsed(&["x", "c", "d"], "use super::Other; pub(in crate::c) struct D;"),
        parsed(&["y"], "use ckptfs_x::c::Other;"),
    ]
    .into();
    let to = |module: &[&str]| -> BTreeSet<String> {
        let module: Names = module.iter().map(|name| (*name).to_owned()).collect();
        source[&module]
            .paths
            .iter()
            .filter_map(|path| target(&source, &module, path, 0))
            .map(|names| names.join("::"))
            .collect()
    };
    let set = |names: &[&str]| -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    };
    assert_eq!(to(&["x", "a"]), set(&["x::a::b", "x::c::d"]));
    assert_eq!(
        to(&["x", "a", "b"]),
        set(&["x::a::b", "x::c"]),
        "an inline module is the file that it is in"
    );
    assert_eq!(
        (to(&["x", "c"]), to(&["x", "c", "d"])),
        (set(&[]), set(&["x::a::b"])),
        "through a re-export"
    );
    assert_eq!(to(&["y"]), set(&["x::a::b"]), "in another crate");
    assert_eq!(
        source[&["x", "a", "b"].map(str::to_owned).to_vec()].methods["B"],
        2
    );
}
