//! Order of the runs: rounds over all cells with their contenders, rotated so that none is always
//! first.

use tload::{ErrorKind, Result};

use super::results::{Failure, Results, Sample};
use super::{Contender, Plan, Runner};

/// Runs the whole plan. Calls `after_each` with the results before the first run and after each
/// run.
///
/// Another loader that fails does not run again in the same cell.
///
/// In the first round, the load of a cell runs first, because fio takes the size of its reads from
/// it.
pub(crate) fn run(
    plan: &Plan,
    runner: &mut dyn Runner,
    results: &mut Results,
    mut after_each: impl FnMut(&Results) -> Result<()>,
) -> Result<()> {
    after_each(results)?;
    for round in 0..plan.rounds {
        for (position, (cell, contender)) in order(plan, round).into_iter().enumerate() {
            let round = round + 1;
            let ran = if results.cells[cell].has_failed(contender) {
                Ok(None)
            } else {
                runner.run(&plan.cells[cell], contender)
            };
            match ran {
                Err(error) if contender.is_peer() && error.kind() != ErrorKind::Cancelled => {
                    let reason = error.to_string();
                    results.cells[cell].failures.push(Failure {
                        round,
                        contender,
                        reason,
                    });
                }
                ran => results.cells[cell].extend(ran?.map(|measurement| Sample {
                    round,
                    position,
                    contender,
                    measurement,
                })),
            }
            after_each(results)?;
        }
    }
    results.complete = true;
    after_each(results)
}

/// Returns the runs of one round. Cells and contenders each start one further than in the previous
/// round.
fn order(plan: &Plan, round: u32) -> Vec<(usize, Contender)> {
    let round = usize::try_from(round).unwrap_or(0);
    let rotated = |count: usize| (0..count).map(move |index| (index + round) % count);
    rotated(plan.cells.len())
        .flat_map(|cell| {
            rotated(plan.contenders.len()).map(move |index| (cell, plan.contenders[index]))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use tload::Error;
    use tload_against::PEERS;

    use super::*;
    use crate::bench::testing::{MockRunner, plan, results};
    use crate::bench::{Cell, Measurement};

    #[test]
    fn contenders_and_cells_take_turns_at_being_first() {
        use Contender::{Ceiling, Fio, Tload};
        let plan = plan(2, 4);
        assert_eq!(
            order(&plan, 0),
            [
                (0, Tload),
                (0, Ceiling),
                (0, Fio),
                (1, Tload),
                (1, Ceiling),
                (1, Fio)
            ]
        );
        assert_eq!(
            order(&plan, 1),
            [
                (1, Ceiling),
                (1, Fio),
                (1, Tload),
                (0, Ceiling),
                (0, Fio),
                (0, Tload)
            ]
        );
        assert_eq!(order(&plan, 2)[0], (0, Fio));
    }

    /// Fails in the second round.
    struct Failing {
        runs: u32,
        kind: ErrorKind,
    }

    impl Runner for Failing {
        fn run(&mut self, cell: &Cell, contender: Contender) -> Result<Option<Measurement>> {
            self.runs += 1;
            if contender.is_peer() && self.runs > 2 {
                return Err(Error::new(self.kind, "no GPU"));
            }
            MockRunner::default().run(cell, contender)
        }
    }

    #[test]
    fn failed_loader_keeps_its_samples_and_does_not_run_again() {
        let peer = Contender::Peer(&PEERS[0]);
        let mut plan = plan(1, 4);
        plan.contenders = vec![Contender::Tload, peer];
        let mut measured = results(&plan);
        let kind = ErrorKind::Unsupported;
        let mut runner = Failing { runs: 0, kind };
        run(&plan, &mut runner, &mut measured, |_| Ok(())).unwrap();
        let cell = &measured.cells[0];
        assert_eq!((cell.samples(peer).count(), runner.runs), (1, 6));
        let [failure] = &cell.failures[..] else {
            panic!("{:?}", cell.failures);
        };
        assert_eq!((failure.round, &*failure.reason), (2, "no GPU"));
        assert!(measured.complete);

        // A signal ends the benchmark.
        let kind = ErrorKind::Cancelled;
        let error = run(
            &plan,
            &mut Failing { runs: 0, kind },
            &mut results(&plan),
            |_| Ok(()),
        );
        assert_eq!(error.unwrap_err().kind(), kind);
    }

    #[test]
    fn results_are_seen_before_the_first_run_and_after_each() {
        let plan = plan(1, 2);
        let mut results = results(&plan);
        let mut seen = Vec::new();
        run(&plan, &mut MockRunner::default(), &mut results, |results| {
            seen.push((results.cells[0].samples.len(), results.complete));
            Ok(())
        })
        .unwrap();
        let counts: Vec<usize> = seen.iter().map(|(count, _)| *count).collect();
        assert_eq!(counts, [0, 1, 2, 3, 4, 5, 6, 6]);
        assert!(seen.last().unwrap().1);
    }
}
