//! NVIDIA GPUs, as the driver or the bus shows them.

use super::{Finding, Level};
use crate::host::System;

/// NVIDIA's vendor number on the PCI bus.
const VENDOR: &str = "0x10de";

pub(super) fn findings(system: &System) -> Vec<Finding> {
    let finding = |value: String| Finding::ok("gpu", "GPUs", value);
    let driven = with_driver(system);
    if !driven.is_empty() {
        return vec![finding(driven.join(", ")).advise(
            Level::Note,
            "this version loads into CPU memory only; the framework copies to the GPU",
        )];
    }
    let bare = on_the_bus(system);
    if bare.is_empty() {
        return vec![finding("none seen".to_owned())];
    }
    vec![
        finding(format!("{} on the bus, no driver", bare.join(", "))).advise(
            Level::Note,
            "install the NVIDIA driver, or expose it to this container",
        ),
    ]
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
