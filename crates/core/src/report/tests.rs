//! Sums of counters, and the text of a report.

use super::*;

#[test]
fn counts_of_extents_add_up_and_keep_last_retry() {
    let counters = Counters::default();
    counters.count(Transfer {
        direct_bytes: 3,
        last_retry: Some("the first".to_owned()),
        ..Transfer::default()
    });
    counters.count(Transfer {
        remote_bytes: 4,
        retries: 1,
        ..Transfer::default()
    });
    assert_eq!(counters.read_bytes(), 7);
    let mut report = Report::default();
    counters.fill(&mut report);
    assert_eq!((report.extents, report.read_bytes), (2, 7));
    assert_eq!((report.direct_bytes, report.remote_bytes), (3, 4));
    assert_eq!(report.retries, 1);
    assert_eq!(report.last_retry.as_deref(), Some("the first"));
    counters.count(Transfer {
        last_retry: Some("the second".to_owned()),
        ..Transfer::default()
    });
    counters.fill(&mut report);
    assert_eq!(report.last_retry.as_deref(), Some("the second"));
}

#[test]
fn text_has_one_line_of_retries_and_standard_labels() {
    let clean = Report {
        lanes: 1,
        depth: 8,
        in_flight_bytes: 32 << 20,
        fresh_regions: 2,
        recycled_regions: 1,
        ..Report::default()
    };
    let text = clean.to_string();
    for line in [
        "reads    0 extents of up to 0 B, 1 lane, limit at the end 8 reads in flight (32.0 MiB); \
         0 B direct, 0 B buffered, 0 B copied; 0 short",
        "memory   peak 0 B of 0 B; 2 regions allocated, 1 reused",
        "time     open 0.000 s, first tensor -; submit 0.000 s, storage wait 0.000 s, \
         budget wait 0.000 s, deliver 0.000 s, consumer wait 0.000 s",
    ] {
        assert!(text.lines().any(|other| other == line), "{line}\n{text}");
    }
    assert!(
        !text.contains("retries") && !text.contains("orphaned"),
        "{text}"
    );
    let troubled = Report {
        retries: 5,
        read_retries: 3,
        request_retries: 1,
        opening_retries: 2,
        stalls: 1,
        hedges: 1,
        last_retry: Some("read of a [0..1]: EIO".to_owned()),
        parked_bytes: 1 << 20,
        parked_reads: 1,
        ..clean
    };
    let text = troubled.to_string();
    let lines = "\nretries  3 reads, 1 request, 2 opening, 1 resubmitted; 1 stalled; \
                 1 hedged (0 won)\n         last retry: read of a [0..1]: EIO\n\
                 orphaned 1.0 MiB held by 1 read that storage has not completed\n";
    assert!(text.contains(lines), "{text}");
}
