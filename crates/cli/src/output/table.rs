//! Tables in plain columns, without rules or colours, so that they can be piped.

use std::collections::BTreeMap;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use tload::internal::printable;

/// Alignment of a column.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Align {
    Left,
    Right,
}

/// Returns the text of a table, with a line feed at its end. A row may have fewer fields than the
/// header: its last field takes the place of the missing ones and widens no column.
pub(crate) fn render(
    header: &[(&str, Align)],
    rows: impl IntoIterator<Item = Vec<String>>,
) -> String {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header.iter().map(|(title, _)| *title));
    // Fields that span the remaining columns, by line.
    let mut long = BTreeMap::new();
    for (line, row) in (1..).zip(rows) {
        // Names come from files and may contain control characters.
        let mut row: Vec<_> = row.iter().map(|field| printable(field)).collect();
        if row.len() < header.len() {
            long.extend(row.pop().map(|field| (line, (row.len(), field))));
        }
        table.add_row(row);
    }
    for (column, (_, align)) in table.column_iter_mut().zip(header) {
        column.set_padding((0, 2));
        if matches!(align, Align::Right) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let mut text = String::new();
    let widths = table.column_max_content_widths();
    for (index, line) in table.lines().enumerate() {
        let line = line.trim_end();
        text.push_str(line);
        if let Some((column, field)) = long.get(&index) {
            let start: usize = widths[..*column]
                .iter()
                .map(|it| usize::from(*it) + 2)
                .sum();
            let gap = start.saturating_sub(line.chars().count());
            text.extend(std::iter::repeat_n(' ', gap));
            text.push_str(field);
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_without_trailing_space() {
        let text = render(
            &[("name", Align::Left), ("bytes", Align::Right)],
            [
                vec!["a".to_owned(), "1".to_owned()],
                vec!["bcdef".to_owned(), "1000000".to_owned()],
            ],
        );
        assert_eq!(text, "name     bytes\na            1\nbcdef  1000000\n");
    }

    #[test]
    fn last_field_of_short_row_widens_no_column() {
        let header = [
            ("name", Align::Left),
            ("bytes", Align::Right),
            ("kind", Align::Left),
        ];
        let rows = [
            ["abcdef", "1", "x"].to_vec(),
            ["a", "failed: no such thing"].to_vec(),
        ];
        let rows = rows.map(|row| row.into_iter().map(str::to_owned).collect());
        let text = "name    bytes  kind\nabcdef      1  x\na       failed: no such thing\n";
        assert_eq!(render(&header, rows), text);
    }

    #[test]
    fn names_cannot_move_the_cursor() {
        let rows = [vec!["a\u{1b}[2Jé\n\u{202e}b".to_owned()]];
        let text = render(&[("name", Align::Left)], rows);
        assert_eq!(text, "name\na\\u{1b}[2Jé\\n\\u{202e}b\n");
    }
}
