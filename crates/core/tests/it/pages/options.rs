//! Table of a load's options in `docs/tuning.md`, and the keys of the configuration file, from the
//! core's tables.

use std::fmt::Write as _;

use tload::LoadOptions;
use tload_testbed::assert_recorded_between;

use crate::tidy::root;

#[test]
fn table_lists_options_with_a_flag() {
    let mut table = "\n| keyword | variable | flag |\n|:--|:--|:--|\n".to_owned();
    for key in LoadOptions::KEYS {
        if let Some(flag) = key.flag {
            let variable = key.variable().map(|variable| format!("`{variable}`"));
            let variable = variable.as_deref().unwrap_or("none");
            writeln!(table, "| `{}` | {variable} | `--{flag}` |", key.name)
                .expect("writing to a string succeeds");
        }
    }
    assert_recorded_between(
        &root().join("docs/tuning.md"),
        "<!-- options: begin -->\n",
        "<!-- options: end -->",
        &(table + "\n"),
    );
}

/// Returns names as a paragraph, wrapped like prose.
fn paragraph(names: impl Iterator<Item = &'static str>) -> String {
    const WIDTH: usize = 100;
    let mut lines = vec![String::new()];
    let names: Vec<_> = names.map(|name| format!("`{name}`")).collect();
    for name in names.join(", ").split(' ') {
        let line = lines.last_mut().expect("there is one");
        if line.len() + 1 + name.len() > WIDTH {
            lines.push(name.to_owned());
        } else {
            *line += if line.is_empty() { "" } else { " " };
            *line += name;
        }
    }
    format!("\n{}.\n\n", lines.join("\n"))
}

#[test]
fn configuration_file_lists_its_keys() {
    let loads = LoadOptions::KEYS.iter();
    let loads = loads.filter(|key| key.variable().is_some());
    let stores = tload::StoreOptions::KEYS.iter();
    let is_shown =
        |name: &str| !name.starts_with("cache_") && !["mirrors", "peers"].contains(&name);
    let stores = stores.filter(|key| !key.secret && is_shown(key.name));
    for (part, names) in [
        ("load", paragraph(loads.map(|key| key.name))),
        ("store", paragraph(stores.map(|key| key.name))),
    ] {
        assert_recorded_between(
            &root().join("docs/reference/config.md"),
            &format!("<!-- {part} keys: begin -->\n"),
            &format!("<!-- {part} keys: end -->"),
            &names,
        );
    }
}
