//! Tables and a property: every byte of every selected tensor is covered exactly once, at the right
//! place.

use proptest::prelude::*;

use super::*;

const IN_PLACE: &[Arrangement] = &[Arrangement::InPlace];

const PACKED: Arrangement = Arrangement::Packed(Packing {
    region_bytes: Packing::REGION_BYTES,
    alignment: Packing::ALIGNMENT,
});

const DIRECT: Layout = Layout {
    extent_bytes: 8192,
    alignment: 4096,
    gap_bytes: 0,
};

fn wanted(source: usize, range: Range<u64>) -> Wanted {
    Wanted {
        source,
        range,
        strides: None,
        alignment: 1,
        destination: 0,
    }
}

#[test]
fn build_worked_example() {
    let plan = build(&[wanted(0, 5000..30000)], &[DIRECT], IN_PLACE);
    let reads: Vec<_> = plan
        .extents
        .iter()
        .map(|e| (e.offset, e.window, e.needed))
        .collect();
    assert_eq!(
        reads,
        [
            (4096, 12288, 12288),
            (16384, 12288, 12288),
            (28672, 4096, 1328)
        ]
    );
    assert_eq!(
        plan.targets[0],
        Target {
            place: Some((0, 904)),
            pieces: 3,
            realign: false,
        }
    );
    assert_eq!(plan.regions[0].bytes, 28672);
    assert_eq!(
        (plan.region_bytes_max(0), plan.window_bytes_max()),
        (28672, 12288)
    );
}

#[test]
fn tensor_slightly_over_extent_size_is_one_read() {
    let far = 10 * 4096;
    let windows = |range: Range<u64>| -> Vec<usize> {
        let plan = build(&[wanted(0, range)], &[DIRECT], IN_PLACE);
        plan.extents.iter().map(|extent| extent.window).collect()
    };
    // The extent's bytes, and what the alignment adds at each end.
    assert_eq!(windows(far..far + 8192 + 2 * 4096), [16384]);
    assert_eq!(windows(far..far + 8192 + 2 * 4096 + 1), [12288, 8192]);
    // A row of a slice is one read, too.
    let row = Indices::from(0..8192 + 2 * 4096);
    let slice = slice_of(far, 2, 1 << 16, [Indices::from(0..2), row]);
    let plan = build(&[slice], &[DIRECT], IN_PLACE);
    let windows: Vec<usize> = plan.extents.iter().map(|extent| extent.window).collect();
    assert_eq!(windows, [16384, 16384]);
}

#[test]
fn windows_share_no_page_for_any_page_size() {
    for page in [4096, 65536] {
        let layout = Layout {
            extent_bytes: 128 << 10,
            alignment: page,
            gap_bytes: 64 << 10,
        };
        // Large and small tensors, with gaps and without, none of them on a page.
        let mut at = 904;
        let tensors: Vec<_> = (1..200_u64)
            .map(|index| {
                at += index % 5 * 777;
                let start = at;
                at += if index % 7 == 0 {
                    300_001
                } else {
                    1234 * index
                };
                wanted(0, start..at)
            })
            .collect();
        let plan = build(&tensors, &[layout], IN_PLACE);
        for region in &plan.regions {
            let mut end = None;
            for extent in &plan.extents[region.extents.clone()] {
                let window = extent.window as u64;
                assert_eq!((extent.offset % page, window % page), (0, 0));
                assert!(end.is_none_or(|end| end <= extent.offset), "{extent:?}");
                end = Some(extent.offset + window);
            }
        }
        assert!(plan.regions.len() > 10 && plan.extents.len() > plan.regions.len());
    }
}

#[test]
fn small_neighbours_share_a_region_and_large_ones_do_not() {
    let mib = 1 << 20;
    let plan = build(
        &[
            wanted(0, 100..200),
            wanted(0, 200..300),
            wanted(0, 300..300 + 2 * mib),
            wanted(0, 300 + 2 * mib..301 + 2 * mib),
            wanted(1, 0..10),
        ],
        &[DIRECT; 2],
        IN_PLACE,
    );
    let tensors: Vec<_> = plan.regions.iter().map(|region| region.tensors).collect();
    assert_eq!(tensors, [2, 1, 1, 1]);
}

#[test]
fn shared_region_stays_within_its_limit() {
    let tensors: Vec<_> = (0..100)
        .map(|i| wanted(0, i * 100_000..(i + 1) * 100_000))
        .collect();
    let plan = build(&tensors, &[DIRECT], IN_PLACE);
    assert_eq!(plan.regions.len(), 10);
    assert!(
        plan.regions
            .iter()
            .all(|region| region.bytes <= (1 << 20) + 2 * 4096)
    );
}

#[test]
fn lone_tensor_begins_on_page_where_reads_may_begin_anywhere() {
    let anywhere = Layout {
        alignment: 1,
        ..DIRECT
    };
    let large = 1000..1000 + (2 << 20);
    let small = |start: u64| Wanted {
        alignment: 64,
        ..wanted(0, start..start + 24)
    };
    let tensors = [
        wanted(0, large.clone()),
        small(3 << 20),
        small(8 + (3 << 20)),
    ];
    let plan = build(&tensors, &[anywhere], IN_PLACE);
    let places: Vec<_> = plan.targets.iter().map(|it| it.place).collect();
    assert_eq!(places, [Some((0, 0)), Some((1, 0)), Some((2, 0))]);
    assert!(plan.targets.iter().all(|it| !it.realign));
    assert_eq!(plan.regions[0].bytes, 2 << 20);
    assert_eq!(plan.extents[0].offset, large.start);

    let plan = build(&tensors, &[DIRECT], IN_PLACE);
    let moved: Vec<_> = plan.targets.iter().map(|it| it.realign).collect();
    assert_eq!(moved, [false, false, true]);
}

#[test]
fn published_regions_stay_few_however_many_tensors_there_are() {
    let len = 3 << 20;
    let tensors: Vec<_> = (0..70_000)
        .map(|i| wanted(0, i * len..(i + 1) * len))
        .collect();
    let regions = |arrangement| {
        let plan = build(&tensors, &[DIRECT], &[arrangement]);
        assert!(plan.regions.iter().all(|it| it.bytes <= 14 << 20));
        plan.regions.len()
    };
    assert_eq!(regions(Arrangement::InPlace), 70_000);
    assert_eq!(regions(Arrangement::Published), 17_500);
}

#[test]
fn gaps_are_read_only_when_worth_it() {
    let tensors = [wanted(0, 0..100), wanted(0, 200..300)];
    assert_eq!(build(&tensors, &[DIRECT], IN_PLACE).regions.len(), 2);
    let bridging = Layout {
        gap_bytes: 100,
        ..DIRECT
    };
    assert_eq!(build(&tensors, &[bridging], IN_PLACE).regions.len(), 1);
}

#[test]
fn misaligned_tensor_gets_own_region_and_is_realigned() {
    let odd = Wanted {
        source: 0,
        range: 4099..4107,
        strides: None,
        alignment: 4,
        destination: 0,
    };
    let plan = build(
        &[wanted(0, 4096..4099), odd, wanted(0, 4107..4110)],
        &[DIRECT],
        IN_PLACE,
    );
    assert_eq!(plan.regions.len(), 3);
    assert!(plan.targets[1].realign);
    assert!(!plan.targets[2].realign);
}

#[test]
fn rewritten_tensors_have_regions_with_room_for_the_result() {
    let tensors = [
        wanted(0, 5000..5008),
        wanted(0, 5008..5016),
        wanted(0, 5016..5024),
    ];
    let bytes = |index: usize| [Some(16), None, Some(4000)][index];
    let plan = build_rewriting(&tensors, &[DIRECT], IN_PLACE, &bytes);
    let found = |tensor: usize| {
        let target = &plan.targets[tensor];
        let (region, offset) = target.place.expect("it has bytes");
        (region, offset, plan.regions[region].bytes, target.realign)
    };
    assert_eq!(found(0), (0, 904, 4096, true));
    assert_eq!(found(1), (1, 912, 4096, false));
    // 920 becomes 960, and 4000 bytes from there on do not fit into the window.
    assert_eq!(found(2), (2, 920, 4960, true));
    assert_eq!(
        plan.extents
            .iter()
            .map(|extent| extent.window)
            .collect::<Vec<_>>(),
        [4096; 3]
    );
}

#[test]
fn empty_tensors_have_no_place() {
    let plan = build(&[wanted(0, 8..8)], &[DIRECT], IN_PLACE);
    assert_eq!(plan.targets[0], Target::default());
    assert!(plan.regions.is_empty());
}

fn layouts() -> impl Strategy<Value = Layout> {
    (
        12u32..24,
        prop::sample::select(vec![1u64, 512, 4096, 65536]),
        0u64..200_000,
    )
        .prop_map(|(extent, alignment, gap_bytes)| Layout {
            extent_bytes: 1 << extent,
            alignment,
            gap_bytes,
        })
}

/// Tensors in file order over three sources, with gaps, empty ones and odd sizes.
fn tensors() -> impl Strategy<Value = Vec<Wanted>> {
    let one = (
        0u64..3000,
        prop::sample::select(vec![
            0u64,
            1,
            7,
            4095,
            4096,
            4097,
            70_000,
            1 << 20,
            5_000_001,
        ]),
        prop::sample::select(vec![1usize, 2, 4, 8]),
    );
    prop::collection::vec(prop::collection::vec(one, 0..12), 3).prop_map(|sources| {
        let mut wanted = Vec::new();
        for (source, tensors) in sources.into_iter().enumerate() {
            let mut offset = 8;
            for (gap, len, alignment) in tensors {
                offset += if gap > 1500 { gap } else { 0 };
                wanted.push(Wanted {
                    source,
                    range: offset..offset + len,
                    strides: None,
                    alignment,
                    destination: 0,
                });
                offset += len;
            }
        }
        wanted
    })
}

proptest! {
    #[test]
    fn every_byte_is_covered_exactly_once(
        tensors in tensors(),
        layouts in prop::collection::vec(layouts(), 3),
    ) {
        let plan = build(&tensors, &layouts, IN_PLACE);
        let mut next_byte = vec![0u64; tensors.len()];
        let mut pieces = vec![0u32; tensors.len()];
        for (index, region) in plan.regions.iter().enumerate() {
            let mut region_offset = 0;
            for extent in &plan.extents[region.extents.clone()] {
                let alignment = layouts[extent.source].alignment;
                prop_assert_eq!((extent.region, extent.source), (index, region.source));
                prop_assert_eq!(extent.offset % alignment, 0);
                prop_assert_eq!(extent.window as u64 % alignment, 0);
                prop_assert!(0 < extent.needed && extent.needed <= extent.window);
                let slack = 3 * alignment.max(64);
                prop_assert!(extent.window as u64 <= layouts[extent.source].extent_bytes + slack);
                for piece in &plan.pieces[extent.pieces.clone()] {
                    let tensor = &tensors[piece.tensor];
                    // Pieces of a tensor follow one another, cover it without gap, and lie where
                    // the file has them.
                    prop_assert_eq!(piece.tensor_offset, next_byte[piece.tensor]);
                    prop_assert_eq!(
                        extent.offset + piece.extent_offset as u64,
                        tensor.range.start + piece.tensor_offset
                    );
                    prop_assert!(piece.len > 0 && piece.extent_offset + piece.len <= extent.needed);
                    // In memory they lie where the target says.
                    let (target_region, offset) = plan.targets[piece.tensor].place.expect("has bytes");
                    prop_assert_eq!(target_region, index);
                    prop_assert_eq!(
                        (region_offset + piece.extent_offset) as u64,
                        offset as u64 + piece.tensor_offset
                    );
                    next_byte[piece.tensor] += piece.len as u64;
                    pieces[piece.tensor] += 1;
                }
                region_offset += extent.window;
            }
            prop_assert_eq!(region_offset, region.bytes);
        }
        for (index, tensor) in tensors.iter().enumerate() {
            prop_assert_eq!(next_byte[index], tensor.range.end - tensor.range.start);
            prop_assert_eq!(pieces[index], plan.targets[index].pieces);
            if let Some((_, offset)) = plan.targets[index].place {
                let aligned = offset % tensor.alignment == 0;
                prop_assert!(aligned || plan.targets[index].realign);
            }
        }
    }

    /// Packed tensors are aligned and do not overlap; neighbours keep their distance where that
    /// aligns them; and a region that several share is no larger than asked for.
    #[test]
    fn packed_tensors_are_aligned_and_disjoint(
        tensors in tensors(),
        layouts in prop::collection::vec(layouts(), 3),
        region_bytes in prop::sample::select(vec![1u64, 5000, 1 << 20, 6 << 20, 64 << 20]),
        alignment in prop::sample::select(vec![1usize, 16, 64, 256]),
    ) {
        let packing = Packing { region_bytes, alignment };
        let plan = build(&tensors, &layouts, &[Arrangement::Packed(packing)]);
        let mut ends = vec![0usize; plan.regions.len()];
        let mut before: Vec<Option<(u64, usize)>> = vec![None; plan.regions.len()];
        for (tensor, target) in tensors.iter().zip(&plan.targets) {
            let Some((region, offset)) = target.place else { continue };
            let len = usize::try_from(tensor.range.end - tensor.range.start).expect("small");
            let wanted = len.next_power_of_two().min(alignment).max(tensor.alignment);
            prop_assert!(!target.realign);
            prop_assert_eq!(offset % wanted, 0);
            prop_assert!(offset >= ends[region]);
            if let Some((start, place)) = before[region] {
                let natural = place + usize::try_from(tensor.range.start - start).expect("small");
                prop_assert!(offset >= natural && offset < natural + wanted);
            }
            before[region] = Some((tensor.range.start, offset));
            ends[region] = offset + len;
        }
        for (region, end) in plan.regions.iter().zip(ends) {
            prop_assert_eq!(region.bytes, end);
            prop_assert!(region.tensors == 1 || end as u64 <= region_bytes);
        }
    }
}

#[test]
fn packed_worked_example() {
    let far = 1 << 20;
    let tensors = [8..12, 12..1012, 1012..1268]
        .map(|range: Range<u64>| wanted(0, far + range.start..far + range.end));
    let plan = build(&tensors, &[DIRECT], &[PACKED]);
    let places: Vec<_> = plan.targets.iter().map(|target| target.place).collect();
    assert_eq!(places, [Some((0, 0)), Some((0, 16)), Some((0, 1024))]);
    assert_eq!(plan.regions[0].bytes, 1280);
}

#[test]
fn packed_regions_hold_large_tensors_up_to_their_size() {
    let mib = 1 << 20;
    let sizes = [10, 30, 24, 1, 64, 63, 1, 1, 90, 3];
    let mut at = 4096;
    let tensors: Vec<_> = sizes
        .iter()
        .map(|size| {
            let start = at;
            at += size * mib;
            wanted(0, start..at)
        })
        .collect();
    let regions = |region_bytes: u64| -> Vec<(u32, usize)> {
        let packing = Packing {
            region_bytes,
            ..Packing::default()
        };
        let plan = build(&tensors, &[DIRECT], &[Arrangement::Packed(packing)]);
        let regions = plan.regions.iter();
        regions
            .map(|region| (region.tensors, region.bytes >> 20))
            .collect()
    };
    assert_eq!(
        regions(64 * mib),
        [(3, 64), (1, 1), (1, 64), (2, 64), (1, 1), (1, 90), (1, 3)]
    );
    // A size of 1 separates all tensors.
    assert!(regions(1).iter().all(|(tensors, _)| *tensors == 1));
    assert_eq!(regions(1 << 30).len(), 1);
    // Tensors in host memory do not share more.
    let plan = build(&tensors, &[DIRECT], IN_PLACE);
    assert_eq!(plan.regions.len(), sizes.len());
}

/// Neighbours of 176 bytes, as scales of quantized weights are, keep their distance.
#[test]
fn neighbours_of_odd_multiples_of_alignment_keep_their_distance() {
    let tensors: Vec<_> = (0..1000)
        .map(|i| wanted(0, 4096 + i * 176..4096 + (i + 1) * 176))
        .collect();
    for (alignment, distance) in [(16, 176), (64, 192)] {
        let packing = Packing {
            alignment,
            ..Packing::default()
        };
        let plan = build(&tensors, &[DIRECT], &[Arrangement::Packed(packing)]);
        let places: Vec<_> = plan.targets.iter().filter_map(|it| it.place).collect();
        let expected: Vec<_> = (0..1000).map(|i| (0, i * distance)).collect();
        assert_eq!(places, expected);
    }
}

#[test]
fn destinations_share_no_region() {
    let there = Wanted {
        destination: 1,
        ..wanted(0, 200..300)
    };
    let tensors = [wanted(0, 100..200), there, wanted(0, 300..400)];
    let arrangements = [Arrangement::InPlace, Arrangement::Scattered];
    let plan = build(&tensors, &[DIRECT], &arrangements);
    let destinations: Vec<_> = plan
        .regions
        .iter()
        .map(|r| (r.destination, r.bytes))
        .collect();
    assert_eq!(destinations, [(0, 4096), (1, 0), (0, 4096)]);
    let regions = [0, 1, 2].map(|destination| plan.regions_of(destination).count());
    assert_eq!(regions, [2, 1, 0]);
    let largest = [0, 1, 2].map(|destination| plan.region_bytes_max(destination));
    assert_eq!(largest, [4096, 0, 0]);
}

/// A matrix of `rows` rows of `columns` bytes from byte `start` of source 0 on, of which a slice is
/// wanted.
fn slice_of(start: u64, rows: usize, columns: usize, dims: [Indices; 2]) -> Wanted {
    let cut = Slice::new(dims).cut(&[rows, columns], 8).expect("inside");
    Wanted {
        range: start + cut.range.start..start + cut.range.end,
        strides: cut.strides,
        ..wanted(0, 0..0)
    }
}

#[test]
fn slice_skips_wide_gaps() {
    let columns = 1 << 16;
    let first = Indices::from(0..10);
    let tensor = slice_of(100, 4, columns, [Indices::from(0..4), first]);
    let plan = build(std::slice::from_ref(&tensor), &[DIRECT], IN_PLACE);
    let reads: Vec<_> = plan.extents.iter().map(|e| (e.offset, e.needed)).collect();
    assert_eq!(
        reads,
        [(0, 110), (65536, 110), (131_072, 110), (196_608, 110)]
    );
    assert_eq!(plan.regions[0].bytes, 4 * 10);
    let whole = wanted(1, 0..10);
    let both = build(&[tensor.clone(), whole], &[DIRECT; 2], IN_PLACE);
    let gaps: Vec<_> = both
        .extents
        .iter()
        .map(|extent| both.slice_in(extent).is_some())
        .collect();
    assert_eq!(gaps, [true, true, true, true, false]);
    let bridging = Layout {
        gap_bytes: 1 << 16,
        ..DIRECT
    };
    // The gaps are worth reading, but reads of nothing but a gap are left out.
    let plan = build(&[tensor], &[bridging], IN_PLACE);
    assert_eq!(plan.extents.len(), 4);
}

#[test]
fn windows_of_a_slice_do_not_overlap() {
    // The second byte of a row is wanted again 99,000 bytes later, near the end of the row and so
    // near the next one.
    let columns = Indices {
        start: 0,
        count: 2,
        step: 99_000,
        single: false,
    };
    let tensor = slice_of(100, 5, 100_000, [Indices::from(0..5), columns]);
    let plan = build(&[tensor], &[DIRECT], IN_PLACE);
    let ends = plan.extents.iter().map(|e| e.offset + e.window as u64);
    let begins = plan.extents.iter().skip(1).map(|e| e.offset);
    assert!(ends.zip(begins).all(|(end, begin)| end <= begin));
    let bytes: usize = plan.pieces.iter().map(|piece| piece.len).sum();
    assert_eq!(bytes, 10);
}

proptest! {
    /// Read, gathered and joined as sinks do it, a slice has the bytes of its elements.
    #[test]
    fn gathered_slice_has_its_elements(
        (rows, columns) in (1usize..40, 1usize..9000),
        (row, rows_step, column) in (0usize..40, 1usize..4, 0usize..9000),
        // All columns from column 1 on are more than one read covers.
        columns_step in prop_oneof![Just(1), 1usize..5000],
        (row_count, column_count) in (any::<prop::sample::Index>(), any::<prop::sample::Index>()),
        layout in layouts(),
        start in prop::sample::select(vec![0, 100, (1 << 33) + 100]),
    ) {
        let (row, column) = (row % rows, column % columns);
        let dims = [
            Indices {
                start: row,
                count: 1 + row_count.index((rows - row).div_ceil(rows_step)),
                step: rows_step,
                single: false,
            },
            Indices {
                start: column,
                count: 1 + column_count.index((columns - column).div_ceil(columns_step)),
                step: columns_step,
                single: false,
            },
        ];
        // Starts no later than the first read.
        let read = start - start % 65536;
        let before = usize::try_from(start - read).expect("small");
        let file: Vec<u8> = (0..=250u8).cycle().take(before + rows * columns).collect();
        let mut expected = Vec::new();
        for i in 0..dims[0].count {
            for j in 0..dims[1].count {
                let at = (row + i * rows_step) * columns + column + j * columns_step;
                expected.push(file[before + at]);
            }
        }
        let tensor = slice_of(start, rows, columns, dims);
        prop_assert_eq!(tensor.bytes(), expected.len() as u64);
        if tensor.strides.is_none() {
            return Ok(());
        }
        for arrangement in [Arrangement::InPlace, PACKED, Arrangement::Scattered] {
            let plan = build(std::slice::from_ref(&tensor), &[layout], &[arrangement]);
            let mut tensor = vec![0; expected.len()];
            for extent in &plan.extents {
                prop_assert!(plan.slice_in(extent).is_some());
                let alignment = layout.alignment.max(64);
                prop_assert_eq!(extent.offset % alignment, 0);
                prop_assert_eq!(extent.window as u64 % alignment, 0);
                prop_assert!(extent.window as u64 <= layout.extent_bytes + 3 * alignment);
                let start = usize::try_from(extent.offset - read).expect("small");
                let mut window = vec![0xAA; extent.window];
                window[..extent.needed].copy_from_slice(&file[start..start + extent.needed]);
                let mut copied = vec![0xAA; extent.needed];
                plan.gather_from(extent, &window[..extent.needed], &mut copied);
                plan.gather(extent, &mut window[..extent.needed]);
                for piece in &plan.pieces[extent.pieces.clone()] {
                    let to = usize::try_from(piece.tensor_offset).expect("small");
                    let from = &window[piece.extent_offset..piece.extent_offset + piece.len];
                    tensor[to..to + piece.len].copy_from_slice(from);
                    let copied = &copied[piece.extent_offset..piece.extent_offset + piece.len];
                    prop_assert_eq!(copied, from);
                }
            }
            prop_assert_eq!(&tensor, &expected);
            prop_assert_eq!(plan.targets[0].pieces as usize, plan.extents.len());
        }
    }
}
