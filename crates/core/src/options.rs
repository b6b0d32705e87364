//! Options of loads, which the crate `tload-options` has, and the device that tensors go to.

use std::fmt;
use std::str::FromStr;

pub use tload_options::*;

use crate::error::{Error, ErrorKind, Result};

/// Device that tensors are loaded to.
///
/// # Examples
///
/// ```
/// use tload::Device;
///
/// assert_eq!("cuda:1".parse::<Device>()?, Device::Cuda(1));
/// assert_eq!(Device::default(), Device::Cpu);
/// assert_eq!(Device::Cuda(1).to_string(), "cuda:1");
/// # Ok::<(), tload::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Device {
    /// Host memory.
    #[default]
    Cpu,
    /// Memory of a GPU, by its number in this process.
    Cuda(usize),
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

impl FromStr for Device {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let kind = text.split_once(':').map_or(text, |(kind, _)| kind);
        if matches!(text, "cpu" | "cpu:0") {
            return Ok(Self::Cpu);
        }
        if text == "cuda" {
            return Ok(Self::Cuda(0));
        }
        let ordinal = text.strip_prefix("cuda:").filter(|number| {
            let digits = number.bytes().all(|byte| byte.is_ascii_digit());
            digits && number.len() < 6
        });
        if let Some(ordinal) = ordinal.and_then(|number| number.parse().ok()) {
            return Ok(Self::Cuda(ordinal));
        }
        // These are accelerate's names of places and plans.
        let other = match kind {
            "disk" | "meta" => Some((
                "tload loads into memory of the CPU and of CUDA GPUs",
                "leave these tensors out, or use ‹device=cpu›",
            )),
            "auto" | "balanced" | "balanced_low_0" | "sequential" => Some((
                "tload does not plan which device a tensor goes to",
                "use ‹device=cpu› or ‹device=cuda›, or ‹device_map› for several devices",
            )),
            _ => None,
        };
        if let Some((reason, hint)) = other {
            let message = format!("device {text:?} is not supported: {reason}");
            return Err(Error::unsupported(message).with_hint(hint));
        }
        // These are PyTorch's names of other devices.
        if ["hip", "mps", "xpu", "hpu", "npu", "mtia"].contains(&kind) {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "device {text:?} is not supported; tload loads to the CPU and to CUDA GPUs"
                ),
            )
            .with_hint("use ‹device=cpu› and copy the tensors"));
        }
        let unknown = Error::unknown_name("device", text, &["cpu", "cuda", "cuda:N"]);
        Err(match kind {
            "cuda" => unknown.with_hint("N is the number of a GPU"),
            // By its letters, this name would be nearer to `cpu`.
            "gpu" => unknown.with_hint("did you mean \"cuda\"?"),
            _ => unknown,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_parse_classifies_names() {
        for device in [Device::Cpu, Device::Cuda(0), Device::Cuda(15)] {
            assert_eq!(
                device.to_string().parse::<Device>().expect("a name"),
                device
            );
        }
        assert_eq!("cuda".parse::<Device>().expect("a name"), Device::Cuda(0));
        let error = "mps:0".parse::<Device>().expect_err("not ours");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        for nonsense in [
            "tpu",
            "cuda:",
            "cuda:x",
            "cuda:+1",
            "cuda:-1",
            "cuda:123456",
        ] {
            let error = nonsense.parse::<Device>().expect_err("unknown");
            assert_eq!(error.kind(), ErrorKind::InvalidRequest);
        }
    }
}
