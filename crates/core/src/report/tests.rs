//! Sums of counters.

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
