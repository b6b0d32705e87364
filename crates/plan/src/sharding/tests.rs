//! Tables of splits and of the errors of their patterns, and a property of combined ones.

use proptest::prelude::*;

use super::*;
use crate::error::ErrorKind;

const TENSORS: [(&str, &[usize]); 9] = [
    ("model.embed.weight", &[10, 4]),
    ("model.layers.0.q_proj.weight", &[8, 4]),
    ("model.layers.0.o_proj.weight", &[4, 8]),
    ("model.layers.1.experts.0.up", &[6, 4]),
    ("model.layers.1.experts.1.up", &[6, 4]),
    ("model.layers.1.experts.10.up", &[6, 4]),
    ("model.layers.2.q_proj.weight", &[8, 4]),
    ("model.norm.weight", &[4]),
    ("lm_head.weight", &[10, 4]),
];

/// Returns the indices of the names, and the slices by index.
fn apply(sharding: &Sharding) -> (Vec<usize>, Vec<(usize, Slice)>) {
    let index = |name: &str| {
        let position = TENSORS.iter().position(|(known, _)| *known == name);
        position.expect("a tensor of the checkpoint")
    };
    let Sharded { names, slices } = sharding.apply(TENSORS).expect("matches");
    let names = names.iter().map(|name| index(name)).collect();
    let slices = slices.into_iter();
    (
        names,
        slices.map(|(name, slice)| (index(&name), slice)).collect(),
    )
}

fn slice<const N: usize>(ranges: [Range<usize>; N]) -> Slice {
    Slice::new(ranges)
}

fn valid(sharding: Result<Sharding>) -> Sharding {
    sharding.expect("valid")
}

#[test]
fn tensors_split_along_the_dimension_of_the_first_rule() {
    let rules = [("*.o_proj.*", 1), ("*layers.0.*", 0), ("*embed*", 0)];
    let all: Vec<usize> = (0..9).collect();
    let (names, slices) = apply(&valid(Sharding::tp(1, 2, rules)));
    assert_eq!(names, all);
    let halves = [
        (0, slice([5..10, 0..4])),
        (1, slice([4..8, 0..4])),
        (2, slice([0..4, 4..8])),
    ];
    assert_eq!(slices, halves);
    let (names, slices) = apply(&valid(Sharding::tp(0, 1, rules)));
    assert_eq!((names, slices.len()), (all, 0));
}

#[test]
fn uneven_lengths_are_divided_as_by_torch() {
    // torch.arange(10).chunk(4) has the lengths 3, 3, 3 and 1; of 8 ranks the last three get
    // nothing.
    let lens = |size: usize, len: usize| -> Vec<usize> {
        let ranks = 0..size;
        let run = |rank| Position { rank, size }.rounded_up_run(len).len();
        ranks.map(run).collect()
    };
    assert_eq!(lens(4, 10), [3, 3, 3, 1]);
    assert_eq!(lens(8, 10), [2, 2, 2, 2, 2, 0, 0, 0]);
    assert_eq!(lens(3, 0), [0, 0, 0]);
    let (_, slices) = apply(&valid(Sharding::tp(7, 8, [("*embed*", 0)])));
    assert_eq!(slices, [(0, slice([10..10, 0..4]))]);
}

#[test]
fn given_slices_are_kept_and_divided_further() {
    let every = |start, count, step| Indices {
        start,
        count,
        step,
        single: false,
    };
    let rows = Slice::new([every(1, 3, 3)]);
    let given = [
        ("lm_head.weight".to_owned(), vec![10, 4], rows.clone()),
        ("unknown".to_owned(), vec![7], rows),
    ];
    let (names, slices) = apply(&Sharding::from_slices(given.clone()));
    assert_eq!(names.len(), TENSORS.len());
    let columns = Indices::from(0..4);
    assert_eq!(slices, [(8, Slice::new([every(1, 3, 3), columns]))]);
    // From rows 1, 4 and 7, the second of two ranks gets row 7; in the other order, rows 6 and
    // 8 of 5 to 9.
    let last = || valid(Sharding::tp(1, 2, [("lm_head.*", 0)]));
    let both = Sharding::from_slices(given).and(last());
    assert_eq!(apply(&both).1, [(8, Slice::new([every(7, 1, 3), columns]))]);
    let odd = (
        "lm_head.weight".to_owned(),
        vec![5, 4],
        Slice::new([every(1, 2, 2)]),
    );
    let both = last().and(Sharding::from_slices([odd]));
    assert_eq!(apply(&both).1, [(8, Slice::new([every(6, 2, 2), columns]))]);
}

#[test]
fn slices_of_other_shapes_are_listed() {
    let given = ["lm_head.weight", "model.norm.weight", "model.embed.weight"]
        .map(|name| (name.to_owned(), vec![10, 4], Slice::new([0..5, 0..4])));
    let error = error(Ok(Sharding::from_slices(given.clone())));
    assert_eq!(error.kind(), ErrorKind::InvalidRequest);
    assert_eq!(error.tensor(), Some("model.norm.weight"));
    assert_eq!(
        error.message(),
        "1 divided tensor with another shape: \"model.norm.weight\" has shape [4] in the \
         checkpoint, [10, 4] here"
    );
    // Another rank's tensors do not matter.
    let first = ["lm_head.*", "*.norm.*"];
    let elsewhere = valid(Sharding::pp(1, 2, "*.layers.{}.*", first, []));
    let mine = elsewhere.and(Sharding::from_slices(given)).apply(TENSORS);
    assert_eq!(mine.expect("fits").slices.len(), 1);
}

#[test]
fn experts_are_divided_by_number() {
    let own = |rank, size| apply(&valid(Sharding::ep(rank, size, "*.experts.{}.*"))).0;
    // Three experts, 0, 1 and 10, in the order of their numbers.
    assert_eq!(own(0, 2), [0, 1, 2, 3, 4, 6, 7, 8]);
    assert_eq!(own(1, 2), [0, 1, 2, 5, 6, 7, 8]);
    assert_eq!(own(3, 4), [0, 1, 2, 6, 7, 8]);
}

#[test]
fn layers_and_ends_are_divided_among_stages() {
    let pattern = "*.layers.{}.*";
    let own = |rank, size, first: &[&str], last: &[&str]| {
        let first = first.iter().copied();
        apply(&valid(Sharding::pp(
            rank,
            size,
            pattern,
            first,
            last.iter().copied(),
        )))
        .0
    };
    assert_eq!(own(0, 2, &[], &[]), [0, 1, 2, 3, 4, 5, 7, 8]);
    assert_eq!(own(1, 2, &[], &[]), [0, 6, 7, 8]);
    let (first, last) = (["*embed*"], ["*.norm.*", "lm_head*"]);
    assert_eq!(own(0, 3, &first, &last), [0, 1, 2]);
    assert_eq!(own(1, 3, &first, &last), [3, 4, 5]);
    assert_eq!(own(2, 3, &first, &last), [6, 7, 8]);
    // Tied embeddings.
    for (rank, is_end) in [(0, true), (1, false), (2, true)] {
        let own = own(rank, 3, &["*embed*"], &["*embed*"]);
        assert_eq!(own.contains(&0), is_end);
    }
}

#[test]
fn shardings_combine() {
    let experts = valid(Sharding::ep(1, 2, "*.experts.{}.*"));
    let rows = valid(Sharding::tp(1, 2, [("*.up", 0)]));
    let both = (vec![0, 1, 2, 5, 6, 7, 8], vec![(5, slice([3..6, 0..4]))]);
    assert_eq!(apply(&experts.clone().and(rows.clone())), both);
    assert_eq!(apply(&rows.and(experts)), both);
    // Another dimension, and a slice of a slice.
    let quarter = |dim| {
        valid(Sharding::tp(0, 2, [("*embed*", 0)])).and(valid(Sharding::tp(
            1,
            2,
            [("*embed*", dim)],
        )))
    };
    assert_eq!(apply(&quarter(1)).1, [(0, slice([0..5, 2..4]))]);
    assert_eq!(apply(&quarter(0)).1, [(0, slice([3..5, 0..4]))]);
}

fn error(sharding: Result<Sharding>) -> Error {
    sharding
        .and_then(|sharding| sharding.apply(TENSORS))
        .expect_err("refused")
}

#[test]
fn impossible_requests_are_refused() {
    for (rank, size) in [(0, 0), (2, 2), (9, 8)] {
        for sharding in [
            Sharding::tp(rank, size, [("*", 0)]),
            Sharding::ep(rank, size, "*.{}.*"),
            Sharding::pp(rank, size, "*.{}.*", ["*"], ["*"]),
        ] {
            let error = error(sharding);
            assert_eq!(error.kind(), ErrorKind::InvalidRequest);
            assert!(
                error
                    .message()
                    .contains(&format!("no rank {rank} among {size} rank"))
            );
        }
    }
    let error_of_dim = error(Sharding::tp(0, 2, [("*.weight", 1)]));
    assert_eq!(error_of_dim.kind(), ErrorKind::InvalidRequest);
    assert_eq!(error_of_dim.tensor(), Some("model.norm.weight"));
    assert_eq!(
        error_of_dim.message(),
        "cannot split along dimension 1 into 2: the tensor's shape is [4]"
    );
    for pattern in ["*.layers.*", "*.{}.{}.*", "[{}", ""] {
        let error = error(Sharding::ep(0, 2, pattern));
        assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{pattern:?}");
        assert!(error.message().contains(&format!("{pattern:?}")), "{error}");
    }
}

#[test]
fn pattern_without_match_suggests_another() {
    for (sharding, message, hint) in [
        (
            Sharding::tp(0, 2, [("*.q_porj.weight", 0)]),
            "glob \"*.q_porj.weight\" matches none of 9 tensors",
            "did you mean \"*.q_proj.weight\"?",
        ),
        (
            Sharding::ep(0, 2, "*.expert.{}.*"),
            "pattern \"*.expert.{}.*\" matches none of 9 tensors",
            "did you mean \"*.experts.*.*\"?",
        ),
        (
            Sharding::pp(0, 2, "*.layers.{}.*", ["*.embde.*"], []),
            "glob \"*.embde.*\" matches none of 9 tensors",
            "did you mean \"*.embed.*\"?",
        ),
        (
            Sharding::ep(0, 2, "*.norm.{}"),
            "pattern \"*.norm.{}\" matches none of 9 tensors",
            "{} stands for a number; the names have none there",
        ),
        (
            Sharding::ep(0, 2, "vision.{}.*"),
            "pattern \"vision.{}.*\" matches none of 9 tensors",
            "list the names with Checkpoint::tensors",
        ),
    ] {
        let error = error(sharding);
        assert_eq!(error.kind(), ErrorKind::NoSuchTensor);
        assert_eq!((error.message(), error.hint()), (message, Some(hint)));
    }
}

proptest! {
    #[test]
    fn every_element_belongs_to_one_rank(
        shapes in prop::collection::vec(prop::collection::vec(0usize..6, 1..4), 1..10),
        dims in prop::collection::vec(any::<prop::sample::Index>(), 10),
        tp in 1usize..6,
        ep in 1usize..6,
    ) {
        // Tensors of even numbers are experts.
        let names: Vec<_> = (0..shapes.len())
            .map(|index| if index % 2 == 0 { format!("a.experts.{index}.w") } else { format!("a.{index}.w") })
            .collect();
        let rules: Vec<_> = (names.iter().zip(&shapes).zip(dims))
            .map(|((name, shape), dim)| (name.clone(), dim.index(shape.len())))
            .collect();
        let mut found: Vec<Vec<u32>> = (shapes.iter())
            .map(|shape| vec![0; shape.iter().product()])
            .collect();
        for (rank, group) in (0..ep).flat_map(|group| (0..tp).map(move |rank| (rank, group))) {
            let sharding = valid(Sharding::tp(rank, tp, rules.clone()))
                .and(valid(Sharding::ep(group, ep, "*.experts.{}.*")));
            let shapes_by_name = names.iter().map(String::as_str);
            let sharded = sharding
                .apply(shapes_by_name.zip(shapes.iter().map(Vec::as_slice)))
                .expect("matches");
            for name in sharded.names {
                let index = names.iter().position(|known| *known == name).expect("known");
                let mut slices = sharded.slices.iter();
                let slice = slices.find(|(of, _)| *of == name).map(|(_, slice)| slice.clone());
                let cut = slice.unwrap_or_default().cut(&shapes[index], 8).expect("inside");
                let runs = match &cut.strides {
                    None => vec![cut.range.clone()],
                    Some(strides) => {
                        let start = cut.range.start;
                        let is_wanted = |at: &u64| strides.before(at + 1) > strides.before(*at);
                        (0..strides.span()).filter(is_wanted).map(|at| start + at..start + at + 1).collect()
                    }
                };
                for at in runs.into_iter().flatten() {
                    found[index][usize::try_from(at).expect("small")] += 1;
                }
            }
        }
        for (index, found) in found.iter().enumerate() {
            // Tensors without a number are in every group.
            let times = if index % 2 == 0 { 1 } else { u32::try_from(ep).expect("small") };
            prop_assert!(found.iter().all(|count| *count == times), "{index}: {found:?}");
        }
    }
}
