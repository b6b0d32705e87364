//! One level of a tree of files that a server lists all at once. Pure.

use std::collections::{BTreeMap, BTreeSet};

use object_store::path::Path;

/// Returns the files directly below a folder, each as `describe` makes it, and the folders there.
/// Visits only the entries below the folder, because a copy lists every folder.
pub(in crate::storage) fn level<File, Item>(
    files: &BTreeMap<String, File>,
    folder: Option<&Path>,
    mut describe: impl FnMut(Path, &File) -> Item,
) -> (Vec<Item>, BTreeSet<Path>) {
    let root = Path::default();
    let folder = folder.unwrap_or(&root);
    let below = match folder.as_ref() {
        "" => files.range::<str, _>(..),
        // '0' follows '/'.
        name => files.range(format!("{name}/")..format!("{name}0")),
    };
    let (mut items, mut prefixes) = (Vec::new(), BTreeSet::new());
    for (path, file) in below {
        let path = Path::parse(path).expect("was a path");
        let Some(mut below) = path.prefix_match(folder) else {
            continue;
        };
        match (below.next(), below.next()) {
            (Some(first), Some(_)) => {
                prefixes.insert(folder.parts().chain([first]).collect::<Path>());
            }
            (Some(_), None) => {
                drop(below);
                items.push(describe(path, file));
            }
            (None, _) => {}
        }
    }
    (items, prefixes)
}
