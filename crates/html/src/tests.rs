//! Tests of whole pages: texts of any kind, sizes, and the parts that make a page accessible.

use serde_json::{Value, json};

use super::*;

/// Text that would be markup, a script or an end of an attribute.
const HOSTILE: &str = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)> & \u{1b}[31m\u{202e}</title></style>";

/// Bytes of the largest page.
const PAGE_MAX: usize = 200_000;

fn report(location: &str) -> Value {
    json!({
        "location": location, "outcome": "complete", "tensors": 3, "tensor_bytes": 3_000_000,
        "read_bytes": 3_000_320, "extents": 3, "seconds": 0.5, "first_tensor_seconds": 0.1,
        "engine": {"name": "uring", "reason": location, "features": [location]},
        "direct_bytes": 3_000_320, "memory_peak": 1000, "memory_limit": 4096,
        "stages": {"submit": 0.1, "storage_wait": 0.3, "memory_wait": 0.0, "copy_wait": 0.05,
            "deliver": 0.01, "verify": 0.0, "consumer_wait": 0.4},
        "phases": [{"phase": location, "start_seconds": 0.0, "seconds": 0.1},
            {"phase": "first read", "start_seconds": 0.1, "seconds": 0.2}],
        "lanes": 1, "depth": 8, "in_flight_bytes": 8 << 20, "extent_bytes": 1 << 20,
        "depths": [{"sources": location, "in_flight_bytes": 1, "changes": 2,
            "best_bytes_per_second": 3, "reason": location}],
        "devices": [{"device": "cuda:0", "copies": 3, "copied_bytes": 3_000_000,
            "copy_seconds": 0.1, "memory_peak": 1, "memory_limit": 2}],
        "group": {"rank": 0, "size": 2, "share": location},
        "verification": {"choice": "auto", "bytes": 1, "unverified_files": 0,
            "by": [{"by": location, "algorithm": "sha256", "files": 1}]},
        "cache": {"directory": location},
        "mirrors": [{"location": location, "read_bytes": 1, "failure": location}],
        "notes": [location], "verdict": location, "last_retry": location, "retries": 1,
    })
}

fn run(text: &str) -> Run {
    Run {
        version: "1.2.3".to_owned(),
        is_debug: false,
        unix_seconds: 1_800_000_000,
        command: vec!["tload".to_owned(), text.to_owned()],
        host: json!({"kernel": text, "memory_bytes": 1 << 30, "unknown": "x"}),
        options: vec![("engine".to_owned(), text.to_owned())],
    }
}

fn shard(text: &str) -> ShardRow {
    ShardRow {
        location: text.to_owned(),
        tensors: 3,
        bytes: 4096,
    }
}

fn load(text: &str, tensors: usize) -> Load {
    let mut samples = Samples::default();
    for tick in 0..100_u32 {
        samples.add(Moment {
            seconds: f64::from(tick) * 0.01,
            read_bytes: u64::from(tick) << 20,
            received_bytes: u64::from(tick) << 19,
            in_flight_bytes: 8 << 20,
        });
    }
    let tensor = TensorRow {
        name: text.to_owned(),
        dtype: "BF16".to_owned(),
        shape: vec![4096, 4096],
        bytes: 1 << 25,
        shard: 0,
    };
    Load {
        report: report(text),
        text: format!("{text}\n{text}"),
        failure: Some(text.to_owned()),
        run: Some(run(text)),
        samples,
        shards: vec![shard(text)],
        tensors: vec![tensor; tensors],
    }
}

fn bench(text: &str, cells: u64, rounds: u64) -> Bench {
    let spread = |rate: f64| Spread::new([rate, rate * 1.1]).expect("two samples");
    let cell = |index: u64| Cell {
        mode: text.to_owned(),
        cache: "cold".to_owned(),
        engine_asked: "auto".to_owned(),
        engine: "uring".to_owned(),
        asked: Settings {
            depth: (index > 0).then_some(1 << (index % 6)),
            extent_bytes: (index > 0).then_some(1 << (20 + index / 6)),
            lanes: None,
        },
        used: Settings {
            depth: Some(8),
            extent_bytes: Some(1 << 20),
            lanes: Some(1),
        },
        unreached_extent: None,
        reads: text.to_owned(),
        summaries: [
            (Contender::Tload, 1e9),
            (Contender::Ceiling, 2e9),
            (Contender::Peer, 5e8),
        ]
        .map(|(contender, rate)| Summary {
            contender,
            name: text.to_owned(),
            samples: rounds,
            bytes_per_second: spread(rate + quantity::float(index)),
            tload_ratio: Some(0.5),
        })
        .into(),
        failures: vec![("tensorizer".to_owned(), text.to_owned())],
        samples: (1..=rounds)
            .map(|round| Sample {
                round,
                contender: text.to_owned(),
                found: text.to_owned(),
                seconds: 1.0,
                bytes_per_second: 1e9,
                cpu_seconds: Some(0.1),
                peak_rss_bytes: None,
                first_tensor_seconds: Some(0.01),
            })
            .collect(),
    };
    Bench {
        checkpoint: text.to_owned(),
        host: text.to_owned(),
        rounds,
        is_complete: true,
        verdicts: vec![text.to_owned()],
        failure: Some(format!("{text}\n  hint: {text}")),
        warnings: vec![text.to_owned()],
        cells: (0..cells).map(cell).collect(),
        starts: vec![(text.to_owned(), vec![Phase::default()])],
        head: vec!["mode".to_owned(), "#GB/s".to_owned()],
        rows: vec![vec![text.to_owned(), "1.0".to_owned()]],
        run: run(text),
    }
}

fn doctor(text: &str) -> Doctor {
    let finding = |level: &str| {
        json!({"id": "x", "level": level, "title": text, "value": text,
            "advice": format!("{text}: {text}"), "change": {"urgency": "speed", "command": text}})
    };
    Doctor {
        diagnosis: json!({
            "worst": "fail", "change_first": {"id": "x", "urgency": "speed", "command": text},
            "findings": (["fail", "warn", "note", "ok"].map(finding)),
            "error": {"message": text},
        }),
        location: Some(text.to_owned()),
        run: run(text),
    }
}

fn verified(text: &str) -> Value {
    json!({
        "location": text, "bytes": 10, "seconds": 0.1, "ok": false, "notes": [text],
        "written": text,
        "files": [{"name": text, "bytes": 10, "outcome": "differs", "verified_by": [text],
            "silent": [text], "error": text,
            "mismatches": [{"tensor": text, "range": [0, 5], "by": text, "expected": text,
                "found": text}]}],
    })
}

/// Every page and fragment, with this text wherever a text from outside can be.
fn all(text: &str) -> Vec<(&'static str, String)> {
    vec![
        ("load", load_page(&load(text, 3))),
        ("report", report_page(report(text), text, Some(run(text)))),
        ("bench", bench_page(&bench(text, 7, 2))),
        ("doctor", doctor_page(&doctor(text))),
        ("report in a cell", report_fragment(report(text), text)),
        ("verification in a cell", verified_fragment(verified(text))),
    ]
}

/// Returns the page as XML: without the parts of HTML that have no end tags.
fn as_xml(page: &str) -> String {
    let mut xml = page.replace("<!doctype html>", "").replace(" hidden", "");
    for name in ["<meta ", "<link "] {
        while let Some(begin) = xml.find(name) {
            let end = begin + xml[begin..].find('>').expect("a tag");
            xml.replace_range(begin..=end, "");
        }
    }
    xml
}

#[test]
fn texts_are_escaped_everywhere() {
    for (name, page) in all(HOSTILE) {
        assert!(!page.contains("<script"), "{name} has a script");
        assert!(!page.contains("<img"), "{name} has an element of the text");
        assert!(
            !page.contains('\u{1b}') && !page.contains('\u{202e}'),
            "{name}"
        );
        let xml = as_xml(&page);
        let document = roxmltree::Document::parse(&xml)
            .unwrap_or_else(|error| panic!("{name}: {error}\n{xml}"));
        let elements = document.descendants().filter(roxmltree::Node::is_element);
        for element in elements {
            let tag = element.tag_name().name();
            assert!(
                !["script", "img", "iframe", "object"].contains(&tag),
                "{name}: {tag}"
            );
            for attribute in element.attributes() {
                assert!(!attribute.name().starts_with("on"), "{name}: {attribute:?}");
            }
        }
        let shown: String = document.descendants().filter_map(|it| it.text()).collect();
        assert!(
            shown.contains("<script>alert(1)</script>"),
            "{name} hides the text"
        );
    }
}

#[test]
fn doctor_page_words_the_first_change_as_the_terminal_does() {
    let fine = "nothing needs fixing";
    for (level, urgency, badge, lead) in [
        ("note", "little", fine, None),
        ("ok", "little", fine, None),
        ("note", "speed", "1 note", Some("Fix first: pages: echo 1")),
        (
            "warn",
            "little",
            "1 warning",
            Some("Fix first: pages: echo 1"),
        ),
        (
            "warn",
            "hang",
            "1 warning",
            Some("Fix first: pages: echo 1"),
        ),
        ("fail", "failure", "1 failed", Some("Fix first: pages<")),
    ] {
        let page = doctor_page(&Doctor {
            diagnosis: json!({
                "change_first": {"id": "x", "urgency": urgency, "command": "echo 1"},
                "findings": [{"id": "x", "level": level, "title": "pages", "value": "off",
                    "change": {"urgency": urgency, "command": "echo 1"}}],
            }),
            ..Doctor::default()
        });
        let case = format!("{level} {urgency}");
        assert!(page.contains(badge), "{case}: {page}");
        assert_eq!(page.contains(fine), badge == fine, "{case}");
        assert_eq!(page.contains("Fix first"), lead.is_some(), "{case}");
        assert!(page.contains(lead.unwrap_or_default()), "{case}: {page}");
    }
}

#[test]
fn pages_load_nothing_from_elsewhere() {
    for (name, page) in all("a model") {
        for from in [
            "src=",
            "@import",
            "url(",
            "http://",
            "https://",
            "<script",
            "@font-face",
        ] {
            let elsewhere = page.replace("http://www.w3.org/2000/svg", "");
            assert!(!elsewhere.contains(from), "{name} has {from}");
        }
        assert!(page.contains("prefers-color-scheme:dark"), "{name}");
    }
}

#[test]
fn pages_are_accessible() {
    for (name, page) in all("a model") {
        let xml = as_xml(&page);
        let document = roxmltree::Document::parse(&xml).expect("XML");
        let of = |tag: &'static str| {
            document
                .descendants()
                .filter(move |it| it.has_tag_name(tag))
        };
        if page.contains("<html") {
            let html = of("html").next().expect("a root");
            assert_eq!(html.attribute("lang"), Some("en"), "{name}");
            assert!(page.contains("name=\"viewport\""), "{name}");
            assert_eq!(
                of("title")
                    .filter(|it| it
                        .parent_element()
                        .is_some_and(|it| it.has_tag_name("head")))
                    .count(),
                1
            );
        }
        assert_eq!(of("h1").count(), 1, "{name}");
        for table in of("table") {
            let labelled = table.descendants().any(|it| it.has_tag_name("caption"))
                || table
                    .ancestors()
                    .any(|it| it.attribute("aria-label").is_some());
            assert!(labelled, "{name} has a table without a name");
            let heads = table.descendants().filter(|it| it.has_tag_name("th"));
            for head in heads {
                assert!(head.attribute("scope").is_some(), "{name}");
            }
            for head in table
                .descendants()
                .filter(|it| it.attribute("scope") == Some("col"))
            {
                let text: String = head.descendants().filter_map(|it| it.text()).collect();
                assert!(
                    !text.trim().is_empty(),
                    "{name} has an empty header: {table:?}"
                );
            }
        }
        for svg in document
            .descendants()
            .filter(|it| it.tag_name().name() == "svg")
        {
            assert_eq!(svg.attribute("role"), Some("img"), "{name}");
            let has_name = svg
                .attribute("aria-label")
                .is_some_and(|label| !label.is_empty());
            assert!(has_name, "{name} has a picture without a name");
        }
    }
}

#[test]
fn largest_pages_stay_below_their_size() {
    // Each character of this name takes five bytes.
    let long = "<".repeat(10_000);
    let normal = "model.layers.17.self_attn.q_proj.weight";
    for text in [normal, &long] {
        let mut large = load(text, 100_000);
        large.shards = vec![shard(text); 2000];
        let phase = json!({"phase": "connect", "start_seconds": 0.0, "seconds": 0.1});
        large.report["phases"] = json!(vec![phase; 5000]);
        large.report["notes"] = json!(vec![text; 1000]);
        large.text = vec![text; 20].join("\n");
        let large = load_page(&large);
        assert!(large.len() <= PAGE_MAX, "load: {}", large.len());
        assert!(large.contains("which this page leaves out"));
        let many = bench_page(&Bench {
            checkpoint: text.to_owned(),
            run: run(text),
            ..bench(normal, 36, 200)
        });
        assert!(many.len() <= PAGE_MAX, "bench: {}", many.len());
    }
    let usual = bench_page(&bench(normal, 22, 5));
    assert!(
        !usual.contains("leaves out"),
        "the usual sweep has all its runs"
    );
}

#[test]
fn load_page_shows_what_the_report_has() {
    let page = load_page(&load("a model", 3));
    for text in [
        "complete",
        "6.0 MB/s",
        "waiting for storage",
        "65 %",
        "first read",
        "cuda:0",
        "1.0 GiB",
        "2027-01-15 08:00:00 UTC",
        "tload 1.2.3",
        "All samples",
        "the largest first",
    ] {
        assert!(page.contains(text), "{text}");
    }
    // Nothing is said of what a load did not have.
    let plain = report_page(
        json!({"location": "m", "outcome": "complete"}),
        "one line",
        None,
    );
    for text in [
        "GPUs",
        "Mirrors",
        "Ranks",
        "Verification",
        "Machine",
        "NaN",
        "Infinity",
    ] {
        assert!(!plain.contains(text), "{text}");
    }
    // Neither a report of another version nor something else fails.
    for other in [Value::Null, json!([1]), json!({"seconds": "long"})] {
        assert!(report_fragment(other, "").contains("<h1>"));
    }
}

#[test]
fn sweep_has_a_heat_map_with_its_best_cell() {
    let page = bench_page(&bench("stream", 7, 2));
    assert!(page.contains("extent \\ depth"), "{page}");
    assert_eq!(page.matches("class=\"best\"").count(), 1);
    assert!(
        page.contains("--s:45%") && page.contains("--s:0%"),
        "{page}"
    );
    let alone = bench_page(&bench("stream", 1, 2));
    assert!(!alone.contains("Sweep") && alone.contains("Comparison"));
    assert!(alone.contains("tensorizer: stream"), "{alone}");
}

/// Returns the relative luminance of a colour, as in WCAG 2.2.
fn luminance(hex: &str) -> f64 {
    let digits = hex.trim_start_matches('#');
    let wide: String = if digits.len() == 3 {
        digits.chars().flat_map(|digit| [digit; 2]).collect()
    } else {
        digits.to_owned()
    };
    let part = |from: usize| {
        let value = u8::from_str_radix(&wide[from..from + 2], 16).expect("hexadecimal");
        let value = f64::from(value) / 255.0;
        if value <= 0.04045 {
            value / 12.92
        } else {
            ((value + 0.055) / 1.055).powf(2.4)
        }
    };
    0.2126 * part(0) + 0.7152 * part(2) + 0.0722 * part(4)
}

#[test]
fn colours_have_contrast_in_light_and_dark() {
    let style = include_str!("../templates/style.css");
    let schemes: Vec<_> = style.split("--ink0:").skip(1).take(2).collect();
    assert_eq!(schemes.len(), 2);
    for scheme in schemes {
        let list = format!("--ink0:{}", scheme.split('}').next().unwrap_or_default());
        let colour = |name: &str| {
            let (_, rest) = list.split_once(&format!("--{name}:")).expect(name);
            luminance(rest.split(';').next().unwrap_or_default())
        };
        // Text needs 4.5, bars 3.
        let texts = ["ink0", "soft0", "ok", "note", "warn", "fail", "a"].map(|it| (it, 4.5));
        let bars = ["b", "c", "d"].map(|it| (it, 3.0));
        for (name, least) in texts.into_iter().chain(bars) {
            for behind in ["paper0", "panel0"] {
                let (one, other) = (colour(name), colour(behind));
                let contrast = (one.max(other) + 0.05) / (one.min(other) + 0.05);
                assert!(contrast >= least, "{name} on {behind}: {contrast:.2}");
            }
        }
    }
}
