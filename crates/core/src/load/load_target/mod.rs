//! Loading into existing tensors: matches tensors with load targets, and reports every mismatch
//! before a byte is written. Pure.

mod footprint;

use std::collections::{HashMap, HashSet};

use crate::error::{Error, Result, nearest_name, shortened};
use crate::format::{Dtype, natural_cmp};
use crate::memory::Target;
use crate::options::Device;
use crate::plan::Selection;
use crate::tensor::TensorInfo;

use super::destinations::DeviceRules;
use footprint::Footprint;
pub use footprint::LoadTargetLayout;

/// Maximum number of tensors that an error names for each way in which they do not fit: a whole
/// model under other names has thousands.
const SHOWN: usize = 5;

/// An existing tensor of the caller's, to be filled with the tensor of the same name.
#[derive(Clone, Debug)]
pub struct LoadTarget {
    /// The tensor's name.
    pub name: String,
    /// Its element type; none if safetensors files have no such type.
    pub dtype: Option<Dtype>,
    /// Elements along each dimension.
    pub shape: Vec<usize>,
    /// The device that it lives on.
    pub device: Device,
    /// Its memory, if bytes can be written there directly: it is contiguous and of the tensor's
    /// dtype. Without it, the caller copies.
    pub memory: Option<Target>,
    /// Positions of its elements, by which load targets are compared: no two tensors are written
    /// to the same bytes. Default: those of `memory`; a load target with neither shares memory
    /// with none.
    pub layout: Option<LoadTargetLayout>,
}

/// Differences allowed between a checkpoint and its load targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadTargetRules {
    /// Every selected tensor needs a load target, and every load target a tensor. Default: true.
    pub strict: bool,
    /// A load target may have another dtype than its tensor; it then gets no bytes directly, and
    /// the caller converts. Default: false.
    pub cast: bool,
}

impl Default for LoadTargetRules {
    fn default() -> Self {
        Self {
            strict: true,
            cast: false,
        }
    }
}

/// Result of matching: selection, devices and targets of the load.
#[derive(Debug)]
pub(crate) struct Matched {
    pub(crate) selection: Selection,
    pub(crate) devices: DeviceRules,
    pub(crate) targets: HashMap<String, Target>,
}

/// Matches every selected tensor, or slice, with its load target. `whole` returns the
/// checkpoint's tensor of a name, selected or not.
///
/// Load targets that are the same tensor (address, shape, strides and element type), such as tied
/// weights, are filled once, from the first of them that the checkpoint has. Two that would be
/// filled and share memory in any other way are mismatches.
pub(crate) fn matched<'a>(
    tensors: &[TensorInfo],
    whole: impl Fn(&str) -> Option<&'a TensorInfo>,
    load_targets: Vec<LoadTarget>,
    rules: LoadTargetRules,
) -> Result<Matched> {
    let by_name: HashMap<&str, &TensorInfo> =
        tensors.iter().map(|info| (info.name(), info)).collect();
    let footprints: Vec<_> = load_targets.iter().map(Footprint::new).collect();
    let mut faults = Faults::default();
    faults.doubles(&load_targets);
    let mut written: Vec<(&Footprint, &LoadTarget)> = footprints
        .iter()
        .zip(&load_targets)
        .filter(|(_, load_target)| by_name.contains_key(load_target.name.as_str()))
        .filter_map(|(bytes, load_target)| Some((bytes.as_ref()?, load_target)))
        .collect();
    written.sort_by_key(|(bytes, _)| *bytes);
    faults.shared = sharing(&written);
    if rules.strict {
        faults.names(tensors, &by_name, &load_targets, &footprints);
        let (unselected, missing) = faults
            .missing
            .into_iter()
            .partition(|name| whole(name).is_some());
        (faults.unselected, faults.missing) = (unselected, missing);
    }

    let mut names = Vec::new();
    let mut devices: Option<DeviceRules> = None;
    let mut targets = HashMap::new();
    let mut taken = HashSet::new();
    for (load_target, bytes) in load_targets.into_iter().zip(&footprints) {
        let Some(info) = by_name.get(load_target.name.as_str()) else {
            continue;
        };
        let is_slice = whole(info.name()).is_some_and(|whole| whole.shape() != info.shape());
        faults.differences(info, is_slice, &load_target, rules);
        if let Some(bytes) = bytes
            && !taken.insert(bytes)
        {
            continue;
        }
        names.push(load_target.name.clone());
        // Most models are on one device, so no tensor needs a separate rule.
        let devices = devices.get_or_insert_with(|| DeviceRules::new(load_target.device));
        if load_target.device != devices.otherwise {
            devices
                .by_name
                .insert(load_target.name.clone(), load_target.device);
        }
        if let Some(memory) = load_target.memory
            && load_target.dtype == Some(info.dtype())
        {
            targets.insert(load_target.name, memory);
        }
    }
    faults.check()?;
    Ok(Matched {
        selection: Selection::names(names),
        devices: devices.unwrap_or_default(),
        targets,
    })
}

/// Mismatches between tensors and load targets.
#[derive(Debug, Default)]
struct Faults {
    missing: Vec<String>,
    /// Names of load targets that the checkpoint has, and the selection does not.
    unselected: Vec<String>,
    unexpected: Vec<String>,
    differing: Vec<String>,
    shared: Vec<String>,
    /// Number of load targets whose names the checkpoint has.
    in_both: usize,
    /// Some dtypes differ that could be converted.
    are_castable: bool,
}

impl Faults {
    fn doubles(&mut self, load_targets: &[LoadTarget]) {
        let mut seen = HashSet::new();
        for load_target in load_targets {
            if !seen.insert(&load_target.name) {
                self.differing
                    .push(format!("{:?} is given twice", load_target.name));
            }
        }
    }

    /// Adds names that only the checkpoint has, or only the caller, unless they are tied to memory
    /// that is filled.
    fn names(
        &mut self,
        tensors: &[TensorInfo],
        by_name: &HashMap<&str, &TensorInfo>,
        load_targets: &[LoadTarget],
        footprints: &[Option<Footprint>],
    ) {
        let known: HashSet<&str> = load_targets.iter().map(|r| r.name.as_str()).collect();
        let (filled, lacking): (Vec<_>, Vec<_>) = load_targets
            .iter()
            .zip(footprints)
            .partition(|(load_target, _)| by_name.contains_key(load_target.name.as_str()));
        self.in_both = filled.len();
        if !lacking.is_empty() {
            let filled: HashSet<&Footprint> =
                filled.iter().filter_map(|(_, b)| b.as_ref()).collect();
            let untied = lacking
                .iter()
                .filter(|(_, bytes)| !bytes.as_ref().is_some_and(|bytes| filled.contains(bytes)));
            let missing = untied.map(|(load_target, _)| load_target.name.clone());
            self.missing.extend(missing);
        }
        let unexpected = tensors
            .iter()
            .map(TensorInfo::name)
            .filter(|name| !known.contains(name));
        self.unexpected.extend(unexpected.map(str::to_owned));
    }

    fn differences(
        &mut self,
        info: &TensorInfo,
        is_slice: bool,
        load_target: &LoadTarget,
        rules: LoadTargetRules,
    ) {
        let name = info.name();
        if info.shape() != load_target.shape {
            self.differing.push(format!(
                "{name:?} has shape {:?} in {}, {:?} here",
                info.shape(),
                if is_slice {
                    "its slice"
                } else {
                    "the checkpoint"
                },
                load_target.shape
            ));
        } else if load_target.dtype != Some(info.dtype()) {
            if !rules.cast {
                self.are_castable = true;
                let here = load_target.dtype.map_or("another dtype", Dtype::name);
                self.differing.push(format!(
                    "{name:?} is {} in the checkpoint, {here} here",
                    info.dtype()
                ));
            }
        } else if let Some(memory) = &load_target.memory
            && memory.len() as u64 != info.byte_len()
        {
            self.differing.push(format!(
                "{name:?} has {} bytes in the checkpoint, {} here",
                info.byte_len(),
                memory.len()
            ));
        }
    }

    /// Returns the first missing name, and the one in the checkpoint that it may stand for.
    fn nearest_pair(&self) -> Option<(&str, &str)> {
        let missing = self.missing.first()?;
        let near = nearest_name(missing, self.unexpected.iter().map(String::as_str))?;
        Some((missing, near))
    }

    fn check(mut self) -> Result<()> {
        let differing = self.differing.len();
        let all: Vec<String> = [
            list("missing in the checkpoint", &mut self.missing),
            list("not selected", &mut self.unselected),
            list("unexpected in the checkpoint", &mut self.unexpected),
        ]
        .into_iter()
        .flatten()
        .chain(self.differing.iter().take(SHOWN).cloned())
        .chain((differing > SHOWN).then(|| format!("and {} more differ", differing - SHOWN)))
        .chain(self.shared.iter().take(SHOWN).cloned())
        .chain((self.shared.len() > SHOWN).then(|| "and more share memory".to_owned()))
        .collect();
        if all.is_empty() {
            return Ok(());
        }
        let hint = if !self.shared.is_empty() {
            "omit one of the tensors that share memory, or give each its own memory".to_owned()
        } else if self.are_castable {
            "load into memory of the same shapes and dtypes, or turn cast on to convert dtypes"
                .to_owned()
        } else if !self.differing.is_empty() {
            "load into memory of the same shapes".to_owned()
        } else {
            let advice = if !self.unselected.is_empty() {
                "turn strict off, and targets that are not selected are left alone"
            } else if self.in_both == 0 {
                "no name is in both, so pass the module or mapping whose names these are"
            } else {
                "turn strict off to load only the names that are in both"
            };
            match self.nearest_pair() {
                Some((missing, near)) => {
                    let (missing, near) = (shortened(missing), shortened(near));
                    format!("did you mean {near:?} instead of {missing:?}? or {advice}")
                }
                None => advice.to_owned(),
            }
        };
        let message = format!("targets and checkpoint do not match: {}", all.join("; "));
        Err(Error::invalid_request(message).with_hint(hint))
    }
}

/// Counts names and lists the first of them, in natural order; none without names.
fn list(what: &str, names: &mut [String]) -> Option<String> {
    names.sort_by(|one, other| natural_cmp(one, other));
    let (count, shown) = (names.len(), names.len().min(SHOWN));
    let shown_names: Vec<String> = names[..shown]
        .iter()
        .map(|name| format!("{name:?}"))
        .collect();
    let more = match count - shown {
        0 => String::new(),
        left => format!(" and {left} more"),
    };
    (count > 0).then(|| format!("{count} {what}: {}{more}", shown_names.join(", ")))
}

/// Describes pairs of load targets that share memory and would be filled with two different
/// tensors. `written` is sorted by memory.
fn sharing(written: &[(&Footprint, &LoadTarget)]) -> Vec<String> {
    let pairs = written
        .iter()
        .enumerate()
        .flat_map(|(index, (bytes, load_target))| {
            let beside = written[index + 1..].iter();
            beside
                .take_while(|(other, _)| bytes.bounds(other))
                .filter_map(|(other, its)| shared(bytes, load_target, other, its))
        });
    // There may be millions of pairs. One more than an error names is enough.
    pairs.take(SHOWN + 1).collect()
}

/// Returns how two load targets share memory; none if they share none or are the same tensor.
fn shared(
    bytes: &Footprint,
    load_target: &LoadTarget,
    other: &Footprint,
    its: &LoadTarget,
) -> Option<String> {
    let layouts = (
        LoadTargetLayout::from_target(load_target)?,
        LoadTargetLayout::from_target(its)?,
    );
    let relation = if bytes != other {
        match bytes.shares(other) {
            Some(false) => return None,
            Some(true) => "share some of their memory".to_owned(),
            None => "may share memory: their strides are too irregular to tell".to_owned(),
        }
    } else if layouts.0.agrees_with(&layouts.1) && load_target.shape == its.shape {
        return None;
    } else if layouts.0.elements == layouts.1.elements {
        "are the same memory with different shapes or strides".to_owned()
    } else {
        let (one, two) = (&layouts.0.elements, &layouts.1.elements);
        format!("are the same memory, as {one} and as {two}")
    };
    Some(format!(
        "{:?} and {:?} {relation}",
        load_target.name, its.name
    ))
}

#[cfg(test)]
mod tests {
    use std::ptr::NonNull;

    use super::*;
    use crate::error::ErrorKind;
    use crate::format::Entry;

    const STRICT: LoadTargetRules = LoadTargetRules {
        strict: true,
        cast: false,
    };

    /// Matches tensors that are all of the checkpoint's.
    fn matched(
        tensors: &[TensorInfo],
        load_targets: Vec<LoadTarget>,
        rules: LoadTargetRules,
    ) -> Result<Matched> {
        super::matched(tensors, |_| None, load_targets, rules)
    }

    fn info(name: &str, dtype: Dtype, shape: &[usize]) -> TensorInfo {
        let bytes = shape.iter().product::<usize>() * dtype.bits() / 8;
        let entry = Entry {
            name: name.to_owned(),
            dtype,
            shape: shape.to_vec(),
            range: 100..100 + bytes as u64,
        };
        TensorInfo::new(entry, 0)
    }

    #[expect(unsafe_code, reason = "never written to")]
    fn memory(address: usize, len: usize) -> Target {
        let start = NonNull::new(std::ptr::without_provenance_mut(address)).expect("not null");
        // SAFETY: the memory is never accessed.
        unsafe { Target::host(start, len, None) }
    }

    fn load_target(
        name: &str,
        dtype: Dtype,
        shape: &[usize],
        memory: Option<Target>,
    ) -> LoadTarget {
        LoadTarget {
            name: name.to_owned(),
            dtype: Some(dtype),
            shape: shape.to_vec(),
            device: Device::Cpu,
            memory,
            layout: None,
        }
    }

    fn strided(
        name: &str,
        dtype: Dtype,
        address: u64,
        dims: &[(usize, isize)],
        elements: &str,
    ) -> LoadTarget {
        let shape: Vec<usize> = dims.iter().map(|&(len, _)| len).collect();
        LoadTarget {
            layout: Some(LoadTargetLayout {
                address,
                element_bytes: dtype.bits() / 8,
                dims: dims.to_vec(),
                elements: elements.to_owned(),
            }),
            ..load_target(name, dtype, &shape, None)
        }
    }

    #[test]
    fn mismatches_are_all_listed_in_one_error() {
        let tensors = [
            info("a", Dtype::F32, &[2, 3]),
            info("b", Dtype::Bf16, &[4]),
            info("c", Dtype::U8, &[1]),
        ];
        let load_targets = vec![
            load_target("a", Dtype::F32, &[3, 2], Some(memory(0x1000, 24))),
            load_target("b", Dtype::F16, &[4], Some(memory(0x2000, 8))),
            load_target("d", Dtype::U8, &[1], Some(memory(0x3000, 1))),
            load_target("e", Dtype::U8, &[1], None),
        ];
        let error = matched(&tensors, load_targets, STRICT).expect_err("nothing fits");
        assert_eq!(error.kind(), ErrorKind::InvalidRequest);
        assert_eq!(
            error.message(),
            "targets and checkpoint do not match: 2 missing in the checkpoint: \"d\", \"e\"; 1 unexpected in the checkpoint: \"c\"; \"a\" has \
             shape [2, 3] in the checkpoint, [3, 2] here; \"b\" is BF16 in the checkpoint, F16 here"
        );
    }

    #[test]
    fn slice_is_named_as_one() {
        let whole = info("a", Dtype::U8, &[8, 16]);
        let slice = [info("a", Dtype::U8, &[4, 16])];
        let load_target = load_target("a", Dtype::U8, &[8, 16], Some(memory(0x1000, 128)));
        let error = super::matched(&slice, |_| Some(&whole), vec![load_target], STRICT);
        assert_eq!(
            error.expect_err("another shape").message(),
            "targets and checkpoint do not match: \"a\" has shape [4, 16] in its slice, [8, 16] here"
        );
    }

    #[test]
    fn unselected_tensor_is_not_called_missing() {
        let selected = [info("a", Dtype::U8, &[1])];
        let unselected = info("b", Dtype::U8, &[1]);
        let load_targets = vec![
            load_target("a", Dtype::U8, &[1], Some(memory(0x1000, 1))),
            load_target("b", Dtype::U8, &[1], Some(memory(0x2000, 1))),
        ];
        let error = super::matched(&selected, |_| Some(&unselected), load_targets, STRICT);
        let error = error.expect_err("a target is left over");
        assert_eq!(
            (error.message(), error.hint()),
            (
                "targets and checkpoint do not match: 1 not selected: \"b\"",
                Some("turn strict off, and targets that are not selected are left alone")
            )
        );
    }

    #[test]
    fn long_lists_are_cut_and_sorted_naturally() {
        let names = |prefix: &str, count: usize| -> Vec<String> {
            let numbers = (0..count).rev();
            numbers.map(|number| format!("{prefix}{number}")).collect()
        };
        let tensors: Vec<_> = names("x.", 1_200)
            .iter()
            .chain(&names("both.", 7))
            .map(|name| info(name, Dtype::U8, &[1]))
            .collect();
        let load_targets = names("y.", 6)
            .iter()
            .chain(&names("both.", 7))
            .map(|name| load_target(name, Dtype::U8, &[2], None))
            .collect();
        let error = matched(&tensors, load_targets, STRICT).expect_err("nothing fits");
        let differing: Vec<_> = (2..7)
            .rev()
            .map(|number| format!("\"both.{number}\" has shape [1] in the checkpoint, [2] here"))
            .collect();
        assert_eq!(
            error.message(),
            format!(
                "targets and checkpoint do not match: 6 missing in the checkpoint: \"y.0\", \"y.1\", \"y.2\", \"y.3\", \
                 \"y.4\" and 1 more; 1200 unexpected in the checkpoint: \"x.0\", \"x.1\", \"x.2\", \"x.3\", \"x.4\" and \
                 1195 more; {}; and 2 more differ",
                differing.join("; ")
            )
        );
        let both: Vec<_> = names("both.", 7);
        let tensors: Vec<_> = both
            .iter()
            .map(|name| info(name, Dtype::U8, &[4]))
            .collect();
        let overlapping = both
            .iter()
            .enumerate()
            .map(|(index, name)| {
                load_target(name, Dtype::U8, &[4], Some(memory(0x1000 + index, 4)))
            })
            .collect();
        let error = matched(&tensors, overlapping, STRICT).expect_err("overlap");
        assert_eq!(error.message().matches("share some of").count(), SHOWN);
        assert!(error.message().ends_with("; and more share memory"));
    }

    #[test]
    fn lenient_match_loads_common_tensors_directly_if_dtype_matches() {
        let tensors = [
            info("a", Dtype::F32, &[2]),
            info("b", Dtype::F32, &[2]),
            info("c", Dtype::F32, &[2]),
        ];
        let load_targets = vec![
            load_target("a", Dtype::F32, &[2], Some(memory(0x1000, 8))),
            load_target("b", Dtype::F16, &[2], Some(memory(0x2000, 4))),
            load_target("x", Dtype::F16, &[2], None),
        ];
        let rules = LoadTargetRules {
            strict: false,
            cast: true,
        };
        let matched = matched(&tensors, load_targets, rules).expect("fits");
        assert_eq!(matched.targets.keys().collect::<Vec<_>>(), ["a"]);
        let selected = matched
            .selection
            .resolve(&["a", "b", "c"])
            .expect("selects");
        assert_eq!(selected, [0, 1]);
        assert_eq!(matched.devices.otherwise, Device::Cpu);
        assert!(matched.devices.by_name.is_empty());
    }

    #[test]
    fn tied_memory_is_filled_once_and_overlap_is_rejected() {
        let tensors = [info("a", Dtype::U8, &[8]), info("b", Dtype::U8, &[8])];
        let tied = |name: &str| load_target(name, Dtype::U8, &[8], Some(memory(0x1000, 8)));
        let matched_both =
            matched(&tensors, vec![tied("a"), tied("b"), tied("c")], STRICT).expect("tied");
        assert_eq!(matched_both.targets.len(), 1);
        let shifted = load_target("b", Dtype::U8, &[8], Some(memory(0x1004, 8)));
        let error = matched(&tensors, vec![tied("a"), shifted.clone()], STRICT);
        assert_eq!(
            error.expect_err("overlap").message(),
            "targets and checkpoint do not match: \"a\" and \"b\" share some of their memory"
        );
        let error = matched(&tensors, vec![tied("a"), tied("a"), tied("b")], STRICT);
        assert!(error.expect_err("twice").message().contains("given twice"));
        // A view that receives no tensor is allowed.
        let only = [info("a", Dtype::U8, &[8])];
        let lenient = LoadTargetRules {
            strict: false,
            cast: false,
        };
        assert!(matched(&only, vec![tied("a"), shifted], lenient).is_ok());
    }

    #[test]
    fn aliasing_views_are_rejected_unless_same_tensor() {
        let tensors = [
            info("a", Dtype::F32, &[4, 4]),
            info("b", Dtype::F32, &[4, 4]),
        ];
        let rows: [(usize, isize); 2] = [(4, 16), (4, 4)];
        let columns: [(usize, isize); 2] = [(4, 4), (4, 16)];
        let sharing = |a: LoadTarget, b: LoadTarget| {
            let error = matched(&tensors, vec![a, b], STRICT).err()?;
            assert!(
                error
                    .hint()
                    .is_some_and(|hint| hint.contains("share memory"))
            );
            let relation = error.message().split_once("\"a\" and \"b\" ");
            Some(relation.expect("names both").1.to_owned())
        };
        let f32 = |name, address, dims| strided(name, Dtype::F32, address, dims, "F32");
        let same = "are the same memory with different shapes or strides";
        let overlapping = "share some of their memory";
        for (a, b, expected) in [
            (f32("a", 0x1000, &columns), f32("b", 0x1000, &columns), None),
            (
                f32("a", 0x1000, &rows),
                f32("b", 0x1000, &columns),
                Some(same),
            ),
            (
                f32("a", 0x1000, &[(4, 32), (4, 8)]),
                f32("b", 0x1004, &[(4, 32), (4, 8)]),
                None,
            ),
            (
                f32("a", 0x1000, &[(4, 32), (4, 8)]),
                f32("b", 0x1008, &[(4, 32), (4, 8)]),
                Some(overlapping),
            ),
            (
                f32("a", 0x1000, &columns),
                load_target("b", Dtype::F32, &[4, 4], Some(memory(0x1030, 64))),
                Some(overlapping),
            ),
            (
                f32("a", 0x1000, &rows),
                strided("b", Dtype::F32, 0x1000, &rows, "I32"),
                Some("are the same memory, as F32 and as I32"),
            ),
        ] {
            assert_eq!(sharing(a, b).as_deref(), expected);
        }
    }

    #[test]
    fn noncontiguous_tied_receiver_is_filled_once_and_not_missing() {
        let columns: [(usize, isize); 2] = [(4, 4), (4, 16)];
        let tied = |name: &str| strided(name, Dtype::F32, 0x1000, &columns, "F32");
        let tensors = [
            info("b", Dtype::F32, &[4, 4]),
            info("c", Dtype::F32, &[4, 4]),
        ];
        let found = matched(&tensors, vec![tied("a"), tied("b"), tied("c")], STRICT).expect("fit");
        let selected = found.selection.resolve(&["b", "c"]).expect("selects");
        assert_eq!((selected, found.targets.len()), (vec![0], 0));
    }
}
