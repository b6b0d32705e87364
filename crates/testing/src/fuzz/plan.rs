//! Plans over any table of tensors: every byte of every tensor arrives exactly once and at its
//! recorded place; windows are aligned, and those of one region are consecutive.

use super::Input;
use tload::internal::plan::{Arrangement, Layout, Packing, Plan, Wanted, build};

/// Maximum number of tensors of a table.
const TENSORS_MAX: usize = 100;

const ARRANGEMENTS: [Arrangement; 4] = [
    Arrangement::InPlace,
    Arrangement::Published,
    // Regions of this size hold some tensors of a table, and are smaller than others.
    Arrangement::Packed(Packing {
        region_bytes: 100_000,
        alignment: Packing::ALIGNMENT,
    }),
    Arrangement::Scattered,
];

/// Interprets `input` as read layouts of sources, and as the tensors wanted from them.
pub(super) fn check(input: &[u8]) {
    let mut input = Input::new(input);
    let layouts: Vec<Layout> = (0..=input.index_up_to(2))
        .map(|_| layout(&mut input))
        .collect();
    let arrangements: Vec<Arrangement> = (0..=input.index_up_to(2))
        .map(|_| input.pick(&ARRANGEMENTS))
        .collect();
    let wanted = table(&mut input, layouts.len(), arrangements.len());
    let plan = build(&wanted, &layouts, &arrangements);
    assert_covers(&plan, &wanted, &layouts, &arrangements);
    assert_disjoint(&plan, &wanted, &arrangements);
}

fn layout(input: &mut Input<'_>) -> Layout {
    Layout {
        extent_bytes: 1 << (12 + input.up_to(12)),
        alignment: input.pick(&[1, 512, 4096, 65_536]),
        gap_bytes: input.up_to(200_000),
    }
}

/// Returns tensors in file order, with gaps, without bytes, or at any offset.
fn table(input: &mut Input<'_>, sources: usize, destinations: usize) -> Vec<Wanted> {
    let mut wanted = Vec::new();
    for source in 0..sources {
        let mut offset = input.up_to(100_000);
        while !input.is_empty() && wanted.len() < TENSORS_MAX {
            let kind = input.byte();
            if kind % 16 == 15 {
                break;
            }
            if kind.is_multiple_of(4) {
                offset += input.up_to(1 << (kind / 8));
            }
            let most = [1, 255, 1 << 16, 1 << 20][usize::from(kind / 64)];
            let len = input.up_to(most);
            wanted.push(Wanted {
                source,
                range: offset..offset + len,
                strides: None,
                alignment: 1 << (kind / 4 % 4),
                destination: usize::from(kind / 16) % destinations,
            });
            offset += len;
        }
    }
    wanted
}

fn assert_covers(plan: &Plan, wanted: &[Wanted], layouts: &[Layout], arrangements: &[Arrangement]) {
    let mut next_byte = vec![0_u64; wanted.len()];
    let mut pieces = vec![0_u32; wanted.len()];
    let mut next_extent = 0;
    for (index, region) in plan.regions.iter().enumerate() {
        assert_eq!(region.extents.start, next_extent, "extents out of order");
        next_extent = region.extents.end;
        let in_place = arrangements[region.destination].is_in_place();
        let mut windows = 0;
        let mut read_to = 0;
        for extent in &plan.extents[region.extents.clone()] {
            let layout = &layouts[extent.source];
            assert_eq!((extent.region, extent.source), (index, region.source));
            assert!(extent.offset >= read_to, "windows overlap");
            assert_eq!(extent.offset % layout.alignment, 0);
            assert_eq!(extent.window as u64 % layout.alignment, 0);
            assert!(0 < extent.needed && extent.needed <= extent.window);
            let slack = 3 * layout.alignment.max(64);
            assert!(
                extent.window as u64 <= layout.extent_bytes + slack,
                "{extent:?}"
            );
            read_to = extent.offset + extent.window as u64;
            for piece in &plan.pieces[extent.pieces.clone()] {
                let tensor = &wanted[piece.tensor];
                assert_eq!(tensor.destination, region.destination);
                assert_eq!(piece.tensor_offset, next_byte[piece.tensor], "{piece:?}");
                let at = extent.offset + piece.extent_offset as u64;
                assert_eq!(at, tensor.range.start + piece.tensor_offset);
                assert!(piece.len > 0 && piece.extent_offset + piece.len <= extent.needed);
                let (place, offset) = plan.targets[piece.tensor].place.expect("it has bytes");
                assert_eq!(place, index);
                if in_place {
                    let found = (windows + piece.extent_offset) as u64;
                    assert_eq!(found, offset as u64 + piece.tensor_offset);
                }
                next_byte[piece.tensor] += piece.len as u64;
                pieces[piece.tensor] += 1;
            }
            windows += extent.window;
        }
        assert!(!in_place || windows == region.bytes, "{region:?}");
    }
    assert_eq!(next_extent, plan.extents.len());
    for (index, tensor) in wanted.iter().enumerate() {
        assert_eq!(next_byte[index], tensor.range.end - tensor.range.start);
        assert_eq!(pieces[index], plan.targets[index].pieces);
        assert_eq!(
            plan.targets[index].place.is_some(),
            !tensor.range.is_empty()
        );
    }
}

/// Checks that no two tensors share a byte in memory, and that each is aligned or marked as
/// unaligned.
fn assert_disjoint(plan: &Plan, wanted: &[Wanted], arrangements: &[Arrangement]) {
    let mut places = Vec::new();
    let mut tensors = vec![0; plan.regions.len()];
    for (tensor, target) in wanted.iter().zip(&plan.targets) {
        let Some((region, offset)) = target.place else {
            continue;
        };
        tensors[region] += 1;
        if arrangements[tensor.destination] == Arrangement::Scattered {
            continue;
        }
        assert!(
            target.realign || offset % tensor.alignment == 0,
            "{target:?}"
        );
        let len = usize::try_from(tensor.bytes()).expect("small");
        assert!(offset + len <= plan.regions[region].bytes, "{target:?}");
        places.push((region, offset, offset + len));
    }
    places.sort_unstable();
    for pair in places.windows(2) {
        let [(region, _, end), (next_region, begin, _)] = pair else {
            unreachable!("pairs");
        };
        assert!(region != next_region || end <= begin, "tensors overlap");
    }
    for (region, tensors) in plan.regions.iter().zip(tensors) {
        assert_eq!(region.tensors, tensors);
    }
}
