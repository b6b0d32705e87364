//! Kernel, processors and NUMA nodes.

use std::thread;

use super::{Finding, Level};
use crate::host::System;

pub(crate) fn findings(system: &System) -> Vec<Finding> {
    vec![kernel(system), processors(system), nodes(system)]
}

fn kernel(system: &System) -> Finding {
    Finding::known("kernel", "kernel", system.read("proc/sys/kernel/osrelease"))
}

fn processors(system: &System) -> Finding {
    let cores = thread::available_parallelism()
        .map_or_else(|error| error.to_string(), |cores| format!("{cores} usable"));
    let model = system.field("proc/cpuinfo", "model name");
    Finding::ok(
        "processors",
        "processors",
        model.map_or_else(|_| cores.clone(), |model| format!("{cores}, {model}")),
    )
}

fn nodes(system: &System) -> Finding {
    let folder = "sys/devices/system/node";
    let nodes: Vec<String> = system
        .list(folder)
        .into_iter()
        .filter(|name| {
            name.strip_prefix("node")
                .is_some_and(|number| number.parse::<u32>().is_ok())
        })
        .map(|node| {
            let cpus = system.read(format!("{folder}/{node}/cpulist"));
            cpus.map_or_else(|_| node.clone(), |cpus| format!("{node}: cpus {cpus}"))
        })
        .collect();
    match nodes.len() {
        0 => Finding::ok("numa", "NUMA nodes", "not reported by the kernel"),
        1 => Finding::ok("numa", "NUMA nodes", "1"),
        count => Finding::ok("numa", "NUMA nodes", format!("{count} ({})", nodes.join("; "))).advise(
            Level::Note,
            "run on the node that the disk or the GPU is attached to: numactl --cpunodebind=N --membind=N",
        ),
    }
}
