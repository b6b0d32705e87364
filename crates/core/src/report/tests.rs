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
        "reads    0 extents of up to 0 B, limit at the end 8 reads in flight (32.0 MiB)",
        "memory   peak 0 B of 0 B; 2 regions allocated, 1 reused",
        "time     open 0.000 s, consumer wait 0.000 s",
    ] {
        assert!(text.lines().any(|other| other == line), "{line}\n{text}");
    }
    assert!(
        ["retries", "orphaned", "lanes", "verdict"]
            .iter()
            .all(|line| !text.contains(line)),
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
    let lines = "\nretries  3 reads, 1 request, 2 opening, 1 resubmitted, 1 stalled, \
                 1 hedged (0 won)\n         last retry: read of a [0..1]: EIO\n\
                 orphaned 1.0 MiB held by 1 read that storage has not completed\n";
    assert!(text.contains(lines), "{text}");
}

#[test]
fn text_has_only_what_happened() {
    let disk = Report {
        tensors: 66,
        tensor_bytes: 3_220_849_000,
        seconds: 6.4,
        outcome: "complete".to_owned(),
        verdict: Some("the disk was the limit".to_owned()),
        extents: 897,
        extent_bytes: 4 << 20,
        direct_bytes: 3 << 30,
        lanes: 2,
        depth: 63,
        in_flight_bytes: 252 << 20,
        first_tensor_seconds: Some(0.25),
        stages: StageTimes {
            submit: 2.769,
            storage_wait: 9.5,
            consumer_wait: 6.0,
            ..StageTimes::default()
        },
        retries: 1,
        read_retries: 1,
        ..Report::default()
    };
    assert_eq!(
        disk.to_string(),
        "66 tensors, 3.0 GiB in 6.400 s: 0.50 GB/s (complete)\n\
         verdict  the disk was the limit\n\
         engine    ()\n\
         reads    897 extents of up to 4.0 MiB, limit at the end 63 reads in flight (252.0 MiB), 3.0 GiB direct\n\
         memory   peak 0 B of 0 B; 0 regions allocated\n\
         retries  1 read\n\
         time     open 0.000 s, first tensor 0.250 s, consumer wait 6.000 s\n\
         lanes    2 lanes, summed: submit 2.769 s, storage wait 9.500 s"
    );
    let other = Report {
        direct_bytes: 0,
        remote_bytes: 1 << 30,
        requests: 80,
        buffered_bytes: 1 << 20,
        copied_bytes: 512,
        short_reads: 1,
        ..disk
    };
    let reads = "(252.0 MiB), 1.0 MiB through the page cache, 1.0 GiB in 80 requests, \
                 512 B copied in memory, 1 short read continued\n";
    assert!(other.to_string().contains(reads), "{other}");
}
