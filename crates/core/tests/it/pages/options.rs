//! Table of a load's options in `docs/tuning.md`, from the core's.

use std::fmt::Write as _;

use tload::LoadOptions;
use tload_testbed::assert_recorded_between;

use crate::tidy::root;

#[test]
fn table_lists_options_with_a_flag() {
    let mut table = "\n| keyword | variable | flag |\n|:--|:--|:--|\n".to_owned();
    for key in LoadOptions::KEYS {
        if let (Some(variable), Some(flag)) = (key.variable(), key.flag) {
            writeln!(table, "| `{}` | `{variable}` | `--{flag}` |", key.name)
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
