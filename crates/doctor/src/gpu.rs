//! NVIDIA GPUs: what the bus and the kernel driver show, and what CUDA offers a load.

use std::fmt::Write;

use tload::internal::cuda::{self, Context, MemoryAttributes, MemoryKind};
use tload::internal::format_bytes;
use tload::internal::memory::{Staging, StagingNeed};
use tload::{Error, Result};

use super::{Finding, Level, Urgency};
use crate::host::System;
use tload_config::flag;
use tload_quantity::format_count;

/// NVIDIA's vendor number on the PCI bus.
const VENDOR: &str = "0x10de";
/// Slots of staging memory for the test of pinning, and their size in bytes: 64 MiB, the amount
/// that the core pins at a time if it must.
const SLOTS: usize = 64;
const SLOT_BYTES: usize = 1 << 20;

/// Facts from CUDA.
#[derive(Debug)]
pub(crate) struct Cuda {
    /// Version of the driver, such as `12080`.
    version: i32,
    devices: Vec<Result<Device>>,
}

/// One GPU, by its number in this process.
#[derive(Debug)]
struct Device {
    /// `cuda:0 NVIDIA H200, 138.0 GiB of 139.8 GiB free, NUMA node 1`
    text: String,
    memory: MemoryAttributes,
    pinning: Result<Pinning>,
}

/// Staging memory as a load would get it.
#[derive(Debug)]
struct Pinning {
    bytes: u64,
    pinned_bytes: u64,
    refusal: Option<String>,
}

impl Cuda {
    /// Opens every GPU, allocates staging memory for it, and releases both.
    pub(crate) fn query() -> Result<Self> {
        let facts = cuda::driver()?;
        let devices = (0..facts.devices).map(Device::query);
        Ok(Self {
            version: facts.version,
            devices: devices.collect(),
        })
    }
}

impl Device {
    fn query(ordinal: usize) -> Result<Self> {
        let context = Context::open(ordinal)?;
        let (facts, memory) = (context.facts(), context.free_memory()?);
        let mut text = format!(
            "cuda:{ordinal} {}, {} of {} free",
            facts.name,
            format_bytes(memory.free),
            format_bytes(memory.total)
        );
        if let Some(node) = facts.numa_node {
            // Writing to a string cannot fail.
            let _ = write!(text, ", NUMA node {node}");
        }
        Ok(Self {
            text,
            memory: facts.memory,
            pinning: Pinning::query(&context),
        })
    }
}

impl Pinning {
    fn query(context: &Context) -> Result<Self> {
        let staging = Staging::take(&StagingNeed {
            slot_bytes: SLOT_BYTES,
            slots: SLOTS,
            bytes_max: SLOTS * SLOT_BYTES,
            context: Some(context),
        })?;
        let facts = staging.facts();
        Ok(Self {
            bytes: facts.bytes as u64,
            pinned_bytes: facts.pinned_bytes as u64,
            refusal: facts.refusal.clone(),
        })
    }
}

pub(crate) fn findings(system: &System, cuda: &Result<Cuda>) -> Vec<Finding> {
    let mut findings = vec![seen(system, cuda.is_ok())];
    match cuda {
        Ok(cuda) => findings.extend(usable(cuda)),
        Err(error) => findings.push(unusable(error)),
    }
    findings
}

/// Returns the finding about GPUs that are visible without CUDA.
fn seen(system: &System, has_cuda: bool) -> Finding {
    let finding = |value: String| Finding::ok("gpu", "GPUs", value);
    let driven = with_driver(system);
    if !driven.is_empty() {
        return finding(driven.join(", "));
    }
    let bare = on_the_bus(system);
    if bare.is_empty() {
        // Containers expose the driver and hide the rest.
        let where_else = if has_cuda { " except by CUDA" } else { "" };
        return finding(format!("none detected{where_else}"));
    }
    finding(format!("{} on the PCI bus, no driver", bare.join(", "))).advise(
        Level::Note,
        "install the NVIDIA driver, or expose it to this container",
    )
}

fn with_driver(system: &System) -> Vec<String> {
    let folder = "proc/driver/nvidia/gpus";
    let gpus = system.list(folder).into_iter().map(|bus| {
        let model = system.field(&format!("{folder}/{bus}/information"), "Model");
        format!("{} ({bus})", model.as_deref().unwrap_or("NVIDIA GPU"))
    });
    gpus.collect()
}

fn on_the_bus(system: &System) -> Vec<String> {
    let folder = "sys/class/drm";
    let is_card = |name: &String| {
        name.strip_prefix("card")
            .is_some_and(|number| number.parse::<u32>().is_ok())
    };
    let cards = system.list(folder).into_iter().filter(is_card);
    cards
        .filter(|card| {
            system
                .read(format!("{folder}/{card}/device/vendor"))
                .is_ok_and(|id| id == VENDOR)
        })
        .collect()
}

/// Returns the finding for a machine without usable CUDA: loads can go to CPU memory only.
fn unusable(error: &Error) -> Finding {
    Finding::ok("cuda", "CUDA", in_one_line(error)).advise(Level::Note, advice(error))
}

fn usable(cuda: &Cuda) -> Vec<Finding> {
    let (major, minor) = (cuda.version / 1000, cuda.version % 1000 / 10);
    let count = format_count(cuda.devices.len() as u64, "GPU");
    let driver = format!("CUDA {major}.{minor}, {count}");
    let mut findings = vec![Finding::ok("cuda", "CUDA", driver), devices(&cuda.devices)];
    findings.extend(memory(&cuda.devices));
    findings.extend(pinning(&cuda.devices));
    findings
}

/// Returns the finding about the kind of memory; `None` if no GPU could be opened.
fn memory(devices: &[Result<Device>]) -> Option<Finding> {
    let kind = |(ordinal, device): (usize, &Result<Device>)| {
        let memory = device.as_ref().ok()?.memory;
        let text = match memory.kind() {
            MemoryKind::Own => "has its own",
            MemoryKind::Coherent => "has its own, coherent with the host's",
            MemoryKind::Shared if memory.reads_in_place() => {
                "shares the host's, and reads ordinary memory"
            }
            MemoryKind::Shared => "shares the host's",
        };
        let is_shared = memory.kind() == MemoryKind::Shared;
        Some((format!("cuda:{ordinal} {text}"), is_shared))
    };
    let found: Vec<_> = devices.iter().enumerate().filter_map(kind).collect();
    if found.is_empty() {
        return None;
    }
    let texts: Vec<_> = found.iter().map(|(text, _)| text.as_str()).collect();
    let finding = Finding::ok("cuda_memory", "GPU memory", texts.join("; "));
    if !found.iter().any(|(_, is_shared)| *is_shared) {
        return Some(finding);
    }
    Some(finding.advise(
        Level::Note,
        "tensors, staging memory and the page cache share one memory: --cache drop keeps files out of the \
         page cache, and --memory-limit 64MiB leaves more of it to tensors",
    ))
}

fn devices(devices: &[Result<Device>]) -> Finding {
    let texts: Vec<String> = devices
        .iter()
        .map(|device| match device {
            Ok(device) => device.text.clone(),
            Err(error) => in_one_line(error),
        })
        .collect();
    let finding = Finding::ok("cuda_devices", "CUDA devices", texts.join("; "));
    match devices.iter().find_map(|device| device.as_ref().err()) {
        Some(error) => finding.advise(Level::Warn, advice(error)),
        None => finding,
    }
}

/// Returns the finding about pinned memory; `None` if no GPU could be opened.
fn pinning(devices: &[Result<Device>]) -> Option<Finding> {
    let opened = devices.iter().enumerate().filter_map(|(ordinal, device)| {
        let pinning = &device.as_ref().ok()?.pinning;
        Some((format!("cuda:{ordinal}"), pinning))
    });
    let mut texts = Vec::new();
    let mut refused = false;
    for (name, pinning) in opened {
        refused |= pinning.as_ref().map_or(true, |it| it.refusal.is_some());
        texts.push(match pinning {
            Ok(pinning) => format!("{name} {}", pinning.describe()),
            Err(error) => format!("{name}: {}", in_one_line(error)),
        });
    }
    if texts.is_empty() {
        return None;
    }
    let finding = Finding::ok("pinning", "pinned memory", texts.join("; "));
    if refused {
        let finding = finding.advise(
            Level::Warn,
            "the driver makes an extra copy on the way to the GPU, at about half the speed: give the \
             container more memory, or raise the locked memory limit (ulimit -l)",
        );
        return Some(finding.change(Urgency::Speed, "ulimit -l unlimited (as root)"));
    }
    Some(finding)
}

impl Pinning {
    fn describe(&self) -> String {
        let tried = format_bytes(self.bytes);
        let refusal = self.refusal.as_ref();
        refusal.map_or_else(
            || format!("{tried} of {tried}"),
            |refusal| {
                let pinned = format_bytes(self.pinned_bytes);
                format!("{pinned} of {tried} ({refusal})")
            },
        )
    }
}

fn in_one_line(error: &Error) -> String {
    let mut text = error.to_string();
    if let Some(cause) = std::error::Error::source(error) {
        text.push_str(": ");
        text.push_str(&cause.to_string());
    }
    text
}

fn advice(error: &Error) -> String {
    let hint = error.hint_with(flag);
    hint.unwrap_or_else(|| "check whether `nvidia-smi` works".to_owned())
}

#[cfg(test)]
mod tests {
    use tload::ErrorKind;

    use super::*;
    use crate::host::testing::system;

    fn refusal() -> Error {
        Error::new(ErrorKind::Unsupported, "no CUDA driver was found")
            .with_hint("install it, or use ‹device=cpu›")
    }

    #[test]
    fn nvidia_gpus_are_seen_by_driver_or_by_vendor() {
        let seen = |files: &[(&str, &str)]| {
            let (_folder, system) = system(files);
            findings(&system, &Err(refusal())).remove(0)
        };
        let driven = seen(&[(
            "proc/driver/nvidia/gpus/0000:01:00.0/information",
            "Model: \t NVIDIA H200\n",
        )]);
        assert_eq!(driven.value, "NVIDIA H200 (0000:01:00.0)");
        assert_eq!(driven.level, Level::Ok);
        let bare = seen(&[("sys/class/drm/card0/device/vendor", "0x10de\n")]);
        assert_eq!(bare.level, Level::Note);
        assert_eq!(seen(&[]).value, "none detected");
    }

    #[test]
    fn missing_driver_gives_reason_and_advice() {
        let (_folder, system) = system(&[]);
        let findings = findings(&system, &Err(refusal()));
        assert_eq!(findings.len(), 2);
        assert_eq!(findings[1].level, Level::Note);
        assert_eq!(findings[1].value, "no CUDA driver was found");
        assert_eq!(
            findings[1].advice.as_deref(),
            Some("install it, or use --device cpu")
        );
    }

    #[test]
    fn failing_gpu_keeps_other_findings() {
        let works = Device {
            text: "cuda:1 works".to_owned(),
            memory: MemoryAttributes::default(),
            pinning: Ok(Pinning {
                bytes: 64 << 20,
                pinned_bytes: 0,
                refusal: Some("no".to_owned()),
            }),
        };
        let broken = Error::new(ErrorKind::Device, "cannot use GPU cuda:0").with_source("lost");
        let cuda = Cuda {
            version: 12_080,
            devices: vec![Err(broken), Ok(works)],
        };
        let found = usable(&cuda);
        assert_eq!(found[0].value, "CUDA 12.8, 2 GPUs");
        assert_eq!(found[1].value, "cannot use GPU cuda:0: lost; cuda:1 works");
        assert_eq!(found[1].level, Level::Warn);
        assert_eq!(found[2].value, "cuda:1 has its own");
        assert_eq!(found[3].value, "cuda:1 0 B of 64.0 MiB (no)");
        assert_eq!(found[3].level, Level::Warn);
    }

    #[test]
    fn kind_of_memory_and_its_consequences_are_told() {
        let device = |is_integrated, reads_pageable, uses_host_page_tables| {
            Ok(Device {
                text: String::new(),
                memory: MemoryAttributes {
                    is_integrated,
                    reads_pageable,
                    uses_host_page_tables,
                },
                pinning: Err(refusal()),
            })
        };
        let own = memory(&[device(false, true, false), Err(refusal())]).unwrap();
        assert_eq!(own.value, "cuda:0 has its own");
        assert_eq!((own.level, own.advice), (Level::Ok, None));
        let both = memory(&[device(false, true, true), device(true, false, false)]).unwrap();
        assert_eq!(
            both.value,
            "cuda:0 has its own, coherent with the host's; cuda:1 shares the host's"
        );
        assert_eq!(both.level, Level::Note);
        assert!(both.advice.unwrap().contains("--cache drop"));
        let in_place = memory(&[device(true, true, true)]).unwrap();
        assert_eq!(
            in_place.value,
            "cuda:0 shares the host's, and reads ordinary memory"
        );
        assert_eq!(memory(&[Err(refusal())]), None);
    }
}
