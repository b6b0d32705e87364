//! Tables in plain columns, without rules or colours, so that they can be piped.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use tload::internal::printable;

/// Alignment of a column.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Align {
    Left,
    Right,
}

/// Returns the text of a table, with a line feed at its end.
pub(crate) fn render(
    header: &[(&str, Align)],
    rows: impl IntoIterator<Item = Vec<String>>,
) -> String {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header.iter().map(|(title, _)| *title));
    // Names come from files and may contain control characters.
    let rows = rows.into_iter().map(|row| {
        let fields = row.iter().map(|field| printable(field));
        fields.collect::<Vec<_>>()
    });
    table.add_rows(rows);
    for (column, (_, align)) in table.column_iter_mut().zip(header) {
        column.set_padding((0, 2));
        if matches!(align, Align::Right) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let mut text = String::new();
    for line in table.lines() {
        text.push_str(line.trim_end());
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
    fn names_cannot_move_the_cursor() {
        let rows = [vec!["a\u{1b}[2Jé\n\u{202e}b".to_owned()]];
        let text = render(&[("name", Align::Left)], rows);
        assert_eq!(text, "name\na\\u{1b}[2Jé\\n\\u{202e}b\n");
    }
}
