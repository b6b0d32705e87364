//! Flags in place of option fields: the core's messages name fields, users of the command know
//! flags.

/// Fields and their flags.
const FLAGS: [(&str, &str); 6] = [
    ("device_memory_limit", "--device-memory-limit"),
    ("memory_limit", "--memory-limit"),
    ("extent_bytes", "--extent"),
    ("in_flight_bytes", "--in-flight"),
    ("range_bytes", "--extent"),
    ("follow_symlinks", "--follow-symlinks"),
];
/// Fields that the core's messages name with a value, as in `engine=pread`.
const NAMES: [&str; 7] = [
    "engine", "cache", "order", "device", "depth", "lanes", "timeout",
];

/// Returns `text` with flags in place of fields: `set memory_limit to 8` → `set --memory-limit to
/// 8`, `use cache=auto` → `use --cache auto`.
pub(crate) fn with_flags(text: &str) -> String {
    text.replace("raise timeout", "raise --timeout")
        .split(' ')
        .map(flag)
        .collect::<Vec<_>>()
        .join(" ")
}

/// Replaces one word. A word in double quotes is a name and stays.
fn flag(word: &str) -> String {
    let bare = word.trim_start_matches(['(', '`']);
    let opening = &word[..word.len() - bare.len()];
    let end = bare
        .find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
        .unwrap_or(bare.len());
    let (name, rest) = bare.split_at(end);
    if let Some(value) = rest.strip_prefix('=') {
        if let Some((_, flag)) = FLAGS.iter().find(|(field, _)| *field == name) {
            return format!("{opening}{flag} {value}");
        }
        if NAMES.contains(&name) {
            return format!("{opening}--{name} {value}");
        }
    }
    // `memory_limit/2` or `extent_bytes.rs` is not an option.
    let stands_alone = rest
        .trim_end_matches([',', ';', ':', '.', ')', '`'])
        .is_empty();
    match FLAGS.iter().find(|(field, _)| *field == name) {
        Some((_, flag)) if stands_alone => format!("{opening}{flag}{rest}"),
        _ => word.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_become_flags() {
        for (text, wanted) in [
            (
                "set memory_limit to at least 8 bytes",
                "set --memory-limit to at least 8 bytes",
            ),
            (
                "extent_bytes is 1; it must lie between 2 and 3",
                "--extent is 1; it must lie between 2 and 3",
            ),
            ("lower (in_flight_bytes)", "lower (--in-flight)"),
            ("set follow_symlinks; or", "set --follow-symlinks; or"),
            (
                "or use engine=auto or engine=pread",
                "or use --engine auto or --engine pread",
            ),
            (
                "use cache=auto, or cache=buffered",
                "use --cache auto, or --cache buffered",
            ),
            ("set memory_limit=8", "set --memory-limit 8"),
            (
                "free memory of the GPU, or lower device_memory_limit",
                "free memory of the GPU, or lower --device-memory-limit",
            ),
            (
                "raise timeout, or see the report's stages",
                "raise --timeout, or see the report's stages",
            ),
        ] {
            assert_eq!(with_flags(text), wanted);
        }
    }

    #[test]
    fn other_text_is_unchanged() {
        for text in [
            "",
            "longer than its timeout of 1s",
            "tensor \"memory_limit\" is unknown",
            "/models/memory_limit/engine=pread",
            "memory_limit.safetensors",
            "page=cache is  kept",
            "the engine is gone",
        ] {
            assert_eq!(with_flags(text), text);
        }
    }
}
