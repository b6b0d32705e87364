//! Duration of the core's steps, one by one: `make bench-micro`. Without `--bench`, each runs once
//! as a smoke test.

mod memory;
mod pure;
mod reads;
mod verified;

use criterion::Criterion;

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    pure::headers(&mut criterion);
    pure::plans(&mut criterion);
    pure::schedules(&mut criterion);
    memory::pool(&mut criterion);
    reads::pipeline(&mut criterion);
    reads::hand_over(&mut criterion);
    reads::engines(&mut criterion);
    #[cfg(target_os = "linux")]
    reads::shared(&mut criterion);
    verified::loads(&mut criterion);
    criterion.final_summary();
}

/// Returns whether this is a measurement rather than a smoke test.
fn is_measuring() -> bool {
    std::env::args().any(|argument| argument == "--bench")
}
