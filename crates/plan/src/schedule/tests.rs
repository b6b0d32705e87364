//! Order of extents: each is read once, sources are interleaved, limits hold.

use std::convert::Infallible;

use super::*;
use crate::{Layout, Wanted, build};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// `sources` files of four 2 MiB tensors each, read in 1 MiB extents.
fn plan(sources: usize) -> Plan {
    let wanted: Vec<_> = (0..sources)
        .flat_map(|source| {
            (0..4u64).map(move |tensor| Wanted {
                source,
                range: tensor * 2 * MIB..(tensor + 1) * 2 * MIB,
                strides: None,
                alignment: 1,
                destination: 0,
            })
        })
        .collect();
    let layout = Layout {
        extent_bytes: MIB,
        alignment: 4 * KIB,
        gap_bytes: 0,
    };
    build(
        &wanted,
        &vec![layout; sources],
        &[crate::Arrangement::InPlace],
    )
}

fn take(schedule: &mut Schedule, plan: &Plan, memory: bool) -> Next {
    schedule
        .next(0, Duration::ZERO, plan, |_| Ok::<_, Infallible>(memory))
        .expect("infallible")
}

fn drain(schedule: &mut Schedule, plan: &Plan) -> Vec<usize> {
    let mut extents = Vec::new();
    loop {
        match take(schedule, plan, true) {
            Next::Extent(extent) => {
                extents.push(extent);
                schedule.ended(&plan.extents[extent], Duration::ZERO);
            }
            Next::Done => return extents,
            stall @ (Next::Deep | Next::Starved) => panic!("stalled: {stall:?}"),
        }
    }
}

#[test]
fn schedule_returns_each_extent_once_in_region_order() {
    let plan = plan(3);
    for order in [Order::Ready, Order::File] {
        let mut schedule = Schedule::new(&plan, order, Groups::one(Depth::fixed(4, 64 * MIB)));
        let mut extents = drain(&mut schedule, &plan);
        for region in &plan.regions {
            let of_region: Vec<_> = extents
                .iter()
                .filter(|extent| region.extents.contains(extent))
                .collect();
            assert!(of_region.is_sorted());
        }
        extents.sort_unstable();
        assert_eq!(extents, (0..plan.extents.len()).collect::<Vec<_>>());
    }
}

#[test]
fn sources_interleave_except_in_file_order() {
    let plan = plan(3);
    let sources = |order| {
        let mut schedule = Schedule::new(&plan, order, Groups::one(Depth::fixed(8, 64 * MIB)));
        let first: Vec<_> = drain(&mut schedule, &plan)[..6]
            .iter()
            .map(|&extent| plan.extents[extent].source)
            .collect();
        first
    };
    let mut ready = sources(Order::Ready);
    ready.sort_unstable();
    assert_eq!(ready, [0, 0, 1, 1, 2, 2]);
    assert_eq!(sources(Order::File), [0; 6]);
}

#[test]
fn depth_bounds_jobs_and_bytes_but_admits_one() {
    let plan = plan(1);
    let mut schedule = Schedule::new(&plan, Order::Ready, Groups::one(Depth::fixed(2, 64 * MIB)));
    assert!(matches!(take(&mut schedule, &plan, true), Next::Extent(_)));
    assert!(matches!(take(&mut schedule, &plan, true), Next::Extent(_)));
    assert_eq!(take(&mut schedule, &plan, true), Next::Deep);

    let mut schedule = Schedule::new(&plan, Order::Ready, Groups::one(Depth::fixed(9, 1)));
    let Next::Extent(first) = take(&mut schedule, &plan, true) else {
        panic!("one is allowed")
    };
    assert_eq!(take(&mut schedule, &plan, true), Next::Deep);
    schedule.ended(&plan.extents[first], Duration::ZERO);
    assert!(matches!(take(&mut schedule, &plan, true), Next::Extent(_)));
}

#[test]
fn schedule_without_memory_continues_open_regions_then_starves() {
    let plan = plan(2);
    let mut schedule = Schedule::new(&plan, Order::Ready, Groups::one(Depth::fixed(16, 64 * MIB)));
    let only_first = schedule.next(0, Duration::ZERO, &plan, |region| {
        Ok::<_, Infallible>(region == 0)
    });
    assert_eq!(only_first, Ok(Next::Extent(0)));
    assert_eq!(take(&mut schedule, &plan, false), Next::Extent(1));
    assert_eq!(take(&mut schedule, &plan, false), Next::Starved);
    assert!(matches!(take(&mut schedule, &plan, true), Next::Extent(_)));
}

#[test]
fn stopped_schedule_is_done() {
    let plan = plan(1);
    let mut schedule = Schedule::new(&plan, Order::Ready, Groups::one(Depth::fixed(2, MIB)));
    schedule.stop();
    assert_eq!(take(&mut schedule, &plan, true), Next::Done);
}

#[test]
fn schedule_reports_its_state() {
    let plan = plan(3);
    let mut schedule = Schedule::new(&plan, Order::Ready, two_groups(0));
    let limit = InFlight {
        jobs: 64,
        bytes: 64 * MIB,
    };
    assert_eq!((schedule.groups(), schedule.limit(1)), (2, limit));
    assert_eq!(schedule.turn(), None);
    let exhausted = |schedule: &Schedule| [0, 1].map(|group| schedule.is_exhausted(group));
    assert_eq!(exhausted(&schedule), [false, false]);
    while let Ok::<_, Infallible>(Next::Extent(_)) =
        schedule.next(1, Duration::ZERO, &plan, |_| Ok(true))
    {}
    assert_eq!(exhausted(&schedule), [false, true]);
    assert!(!schedule.is_stopped());
    schedule.stop();
    assert_eq!(exhausted(&schedule), [true, true]);
    assert!(schedule.is_stopped());
}

#[test]
fn starved_schedule_reports_memory() {
    let plan = plan(1);
    let most = InFlight {
        jobs: 64,
        bytes: 64 * MIB,
    };
    let depth = Depth::adaptive(most, MIB, most);
    let mut schedule = Schedule::new(&plan, Order::Ready, Groups::one(depth));
    assert_eq!(schedule.explain(0).limit_reason, LimitReason::NeverDeep);
    assert_eq!(take(&mut schedule, &plan, false), Next::Starved);
    assert_eq!(schedule.explain(0).limit_reason, LimitReason::Memory);
}

/// A lane that has its share asks for nothing more while the limit is reached.
#[test]
fn limit_shared_by_lanes_is_measured() {
    let plan = plan(12);
    let start = InFlight {
        jobs: 4,
        bytes: 4 * MIB,
    };
    let best = |tells: bool| {
        let depth = Depth::adaptive(start, MIB, start);
        let mut schedule = Schedule::new(&plan, Order::Ready, Groups::one(depth));
        let mut now = Duration::ZERO;
        let mut reading = std::collections::VecDeque::new();
        for _ in 0..80 {
            while reading.len() < 4 {
                let taken = schedule.next(0, now, &plan, |_| Ok::<_, Infallible>(true));
                let Ok(Next::Extent(extent)) = taken else {
                    break;
                };
                reading.push_back(extent);
                if tells {
                    schedule.shared(0);
                }
            }
            now += Duration::from_millis(1);
            let ended = reading.pop_front().expect("four are in flight");
            schedule.ended(&plan.extents[ended], now);
        }
        schedule.explain(0).best_rate
    };
    assert_eq!(best(false), 0);
    assert!(best(true) > 0);
}

#[test]
fn fixed_depth_reports_given_limits() {
    let depth = Depth::fixed(4, 64 * MIB);
    assert_eq!((depth.jobs(), depth.bytes()), (4, 64 * MIB));
    let reads = [1, 31, 32, 33, 65].map(|mib| depth.reads_of(mib << 20));
    assert_eq!(reads, [4, 2, 2, 1, 1]);
    let of = |jobs, bytes| InFlight { jobs, bytes };
    assert_eq!(of(1, 20) + of(3, 400), of(4, 420));
    let shared = Groups::new(vec![depth; 2], Vec::new()).at_most(5);
    assert_eq!([0, 1].map(|group| shared.limits(group).jobs()), [2, 2]);
}

#[test]
fn limit_reason_text_follows_gain() {
    let told = [0.0, 0.96, 0.97, 1.0, 1.02, 1.03, 1.09].map(|gain| LimitReason::by(gain).text());
    let (slower, same, little) = (
        "a higher limit was slower",
        "throughput plateaued",
        "gain too small",
    );
    assert_eq!(told, [slower, slower, same, same, same, little, little]);
}

/// Returns two groups: sources 0 and 2 in the first, 1 in the second.
fn two_groups(stride: u64) -> Groups {
    let depth = Depth::fixed(64, 64 * MIB).with_stride(stride);
    let members = [(0, 0), (1, 0), (0, 1)].map(|(group, index)| Member { group, index });
    Groups::new(vec![depth, depth], members.to_vec())
}

#[test]
fn group_reads_own_sources_within_own_limits() {
    let plan = plan(3);
    let mut schedule = Schedule::new(&plan, Order::Ready, two_groups(0));
    let mut seen = [Vec::new(), Vec::new()];
    for (group, seen) in seen.iter_mut().enumerate() {
        while let Next::Extent(extent) = schedule
            .next(group, Duration::ZERO, &plan, |_| Ok::<_, Infallible>(true))
            .expect("infallible")
        {
            seen.push(plan.extents[extent].source);
        }
    }
    assert!(seen[0].iter().all(|source| *source != 1) && seen[0].len() == 16);
    assert_eq!(seen[1], [1; 8]);
    assert_eq!(schedule.in_flight().jobs, 24);
}

#[test]
fn file_order_group_waits_for_its_turn() {
    let plan = plan(3);
    let mut schedule = Schedule::new(&plan, Order::File, two_groups(0));
    let next = |schedule: &mut Schedule, group| {
        schedule
            .next(group, Duration::ZERO, &plan, |_| Ok::<_, Infallible>(true))
            .expect("infallible")
    };
    assert_eq!(schedule.turn(), Some(0));
    assert_eq!(
        next(&mut schedule, 1),
        Next::Starved,
        "source 0 comes first"
    );
    while let Next::Extent(extent) = next(&mut schedule, 0) {
        assert_eq!(plan.extents[extent].source, 0);
    }
    // Each of the four tensors of a source has its own region.
    assert_eq!(schedule.turn(), Some(4));
    assert_eq!(
        next(&mut schedule, 0),
        Next::Starved,
        "source 1 comes first"
    );
    while let Next::Extent(extent) = next(&mut schedule, 1) {
        assert_eq!(plan.extents[extent].source, 1);
    }
    assert!(matches!(next(&mut schedule, 0), Next::Extent(_)));
}

/// Two sources, whose tensors go to destinations 0, 1 and 2 in turn. Destination 2 has place 1 too.
#[test]
fn divided_group_reads_by_place_of_destination() {
    let wanted = (0..12u64).map(|tensor| Wanted {
        source: usize::from(tensor >= 6),
        range: tensor % 6 * 2 * MIB..(tensor % 6 + 1) * 2 * MIB,
        strides: None,
        alignment: 1,
        destination: [0, 1, 2][usize::try_from(tensor % 3).expect("small")],
    });
    let layout = Layout {
        extent_bytes: MIB,
        alignment: 4 * KIB,
        gap_bytes: 0,
    };
    let arrangements = [const { crate::Arrangement::InPlace }; 3];
    let plan = build(&wanted.collect::<Vec<_>>(), &[layout; 2], &arrangements);
    let division = Division {
        places: vec![0, 1, 1],
        parts: vec![vec![0, 1]],
    };
    let members = [0, 1].map(|index| Member { group: 0, index });
    let depths = vec![Depth::fixed(3, 64 * MIB); 2];
    for order in [Order::Ready, Order::File] {
        let groups = Groups::new(depths.clone(), members.to_vec()).divided(division.clone());
        let mut schedule = Schedule::new(&plan, order, groups);
        let mut read = vec![0; plan.extents.len()];
        let mut by_place = [0; 2];
        while read.contains(&0) {
            let before = by_place;
            for (group, extents) in by_place.iter_mut().enumerate() {
                let mut ended = Vec::new();
                while let Next::Extent(extent) = schedule
                    .next(group, Duration::ZERO, &plan, |_| Ok::<_, Infallible>(true))
                    .expect("infallible")
                {
                    ended.push(extent);
                }
                for extent in ended {
                    let planned = &plan.extents[extent];
                    let destination = plan.regions[planned.region].destination;
                    assert_eq!(group, usize::from(destination > 0), "{order:?}");
                    assert_eq!(schedule.group_of(planned), group);
                    assert_eq!(schedule.index_of(planned.source), planned.source);
                    schedule.ended(planned, Duration::ZERO);
                    read[extent] += 1;
                    *extents += 1;
                }
            }
            assert_ne!(by_place, before, "{order:?}: stuck");
        }
        assert_eq!(by_place, [8, 16]);
        assert!(read.iter().all(|count| *count == 1));
        assert_eq!(schedule.in_flight(), InFlight::default());
        assert!(schedule.is_exhausted(0) && schedule.is_exhausted(1));
    }
}

#[test]
fn beginnings_follow_order() {
    let plan = plan(3);
    let one = Groups::one(Depth::fixed(1, MIB));
    assert_eq!(
        beginnings(&plan, Order::Ready, &one),
        [0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11]
    );
    let in_order: Vec<_> = (0..12).collect();
    assert_eq!(beginnings(&plan, Order::File, &one), in_order);
    let sequential = one.in_file_order(Some(0));
    assert_eq!(beginnings(&plan, Order::Ready, &sequential), in_order);
}

/// Regions get memory ahead of their reads, which a region that has not begun keeps.
#[test]
fn memory_in_the_order_of_beginnings_is_never_stuck() {
    let plan = plan(3);
    for sequential in [None, Some(0), Some(1)] {
        for order in [Order::Ready, Order::File] {
            let depths = vec![Depth::fixed(8, 64 * MIB); 2];
            // Source 1 is alone in its group.
            let members = [(0, 0), (1, 0), (0, 1)].map(|(group, index)| Member { group, index });
            let groups = Groups::new(depths, members.to_vec()).in_file_order(sequential);
            let mut wanted = beginnings(&plan, order, &groups).into_iter();
            let mut given: Vec<usize> = wanted.by_ref().take(2).collect();
            let mut schedule = Schedule::new(&plan, order, groups);
            let mut read = 0;
            while read < plan.extents.len() {
                let mut ended = Vec::new();
                for group in 0..2 {
                    let mut admit = |region| {
                        let found = given.iter().position(|given| *given == region);
                        Ok::<_, Infallible>(found.map(|at| given.remove(at)).is_some())
                    };
                    let mut next = || {
                        schedule
                            .next(group, Duration::ZERO, &plan, &mut admit)
                            .expect("infallible")
                    };
                    while let Next::Extent(extent) = next() {
                        ended.push(extent);
                    }
                }
                assert!(
                    !ended.is_empty(),
                    "{order:?}, {sequential:?}: stuck at {given:?}"
                );
                for extent in ended {
                    schedule.ended(&plan.extents[extent], Duration::ZERO);
                    read += 1;
                    // The caller receives the region.
                    let is_last = plan.regions.iter().any(|it| it.extents.end == extent + 1);
                    given.extend(is_last.then(|| wanted.next()).flatten());
                }
            }
        }
    }
}

#[test]
fn source_keeps_turn_for_stride() {
    let plan = plan(2);
    let depth = Depth::fixed(64, 64 * MIB).with_stride(3 * MIB);
    let mut schedule = Schedule::new(&plan, Order::Ready, Groups::one(depth));
    let sources: Vec<_> = fill(&mut schedule, &plan)
        .into_iter()
        .map(|extent| plan.extents[extent].source)
        .collect();
    assert_eq!(sources, [0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1, 0, 0, 1, 1]);
}

/// Starts reads until the limit is reached; returns their extents.
fn fill(schedule: &mut Schedule, plan: &Plan) -> Vec<usize> {
    let mut extents = Vec::new();
    while let Next::Extent(extent) = take(schedule, plan, true) {
        extents.push(extent);
    }
    extents
}

fn sources_of(plan: &Plan, extents: &[usize]) -> usize {
    let sources = extents.iter().map(|extent| plan.extents[*extent].source);
    sources.collect::<std::collections::BTreeSet<_>>().len()
}

#[test]
fn reads_spread_over_as_many_sources() {
    let plan = plan(64);
    for jobs in [1, 2, 5, 40, 64] {
        let depth = Depth::fixed(jobs, 1 << 30);
        let mut schedule = Schedule::new(&plan, Order::Ready, Groups::one(depth));
        let mut in_flight = fill(&mut schedule, &plan);
        assert_eq!(sources_of(&plan, &in_flight), jobs);
        // Some sources complete immediately, others never: the latter get no second read while
        // another source has none.
        for _ in 0..7 * (64 - jobs) {
            let Some(place) = in_flight
                .iter()
                .rposition(|extent| !plan.extents[*extent].source.is_multiple_of(3))
            else {
                break;
            };
            schedule.ended(&plan.extents[in_flight.remove(place)], Duration::ZERO);
            in_flight.extend(fill(&mut schedule, &plan));
            assert_eq!(in_flight.len(), jobs);
            assert_eq!(sources_of(&plan, &in_flight), jobs);
        }
    }
}

#[test]
fn excess_reads_spread_evenly_over_sources() {
    let plan = plan(4);
    let depth = Depth::fixed(12, 1 << 30);
    let mut schedule = Schedule::new(&plan, Order::Ready, Groups::one(depth));
    let in_flight = fill(&mut schedule, &plan);
    for source in 0..4 {
        let of = in_flight
            .iter()
            .filter(|extent| plan.extents[**extent].source == source);
        assert_eq!(of.count(), 3, "of source {source}");
    }
}

#[test]
fn growing_limit_reaches_more_sources() {
    let plan = plan(64);
    let limit = |jobs: usize| InFlight {
        jobs,
        bytes: jobs as u64 * MIB,
    };
    let depth = Depth::adaptive(limit(4), MIB, limit(64));
    let mut schedule = Schedule::new(&plan, Order::Ready, Groups::one(depth));
    let mut in_flight = std::collections::VecDeque::from(fill(&mut schedule, &plan));
    assert_eq!(in_flight.len(), 4);
    // Each source completes one read at a time, in 10 ms: throughput is proportional to the reads
    // in flight.
    let mut now = Duration::ZERO;
    for _ in 0..12 {
        now += Duration::from_millis(10);
        for extent in in_flight.drain(..) {
            schedule.ended(&plan.extents[extent], now);
        }
        in_flight.extend(fill(&mut schedule, &plan));
        let extents: Vec<_> = in_flight.iter().copied().collect();
        assert_eq!(sources_of(&plan, &extents), in_flight.len());
        if in_flight.len() == 64 {
            return;
        }
    }
    panic!("{} reads, {:?}", in_flight.len(), schedule.explain(0));
}

#[test]
fn starved_regions_are_skipped_in_bounded_steps() {
    let plan = plan(1000);
    let depth = Depth::fixed(2000, 1 << 40);
    let mut schedule = Schedule::new(&plan, Order::Ready, Groups::one(depth));
    assert!(matches!(take(&mut schedule, &plan, true), Next::Extent(_)));
    let mut asked = 0;
    let next = schedule.next(0, Duration::ZERO, &plan, |_| {
        asked += 1;
        Ok::<_, Infallible>(false)
    });
    assert!(matches!(next, Ok(Next::Extent(_))) && asked < 10, "{asked}");
    let next = schedule.next(0, Duration::ZERO, &plan, |_| {
        asked += 1;
        Ok::<_, Infallible>(false)
    });
    assert!(
        next == Ok(Next::Starved) && asked >= 1000,
        "every region was tried"
    );
}
