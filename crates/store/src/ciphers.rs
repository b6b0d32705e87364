//! Order of the cipher suites that the connections of a process offer.

use rustls::CipherSuite;
use rustls::crypto::{CryptoProvider, aws_lc_rs};

/// Makes the connections of this process offer AES-128-GCM first: a server that leaves the choice
/// to its clients then encrypts with fewer rounds. For programs, before their first connection. A
/// program that has installed its own cryptography keeps it.
pub fn prefer_aes_128() {
    // An error means that there is one already.
    let _ = aes_128_first().install_default();
}

fn aes_128_first() -> CryptoProvider {
    let mut provider = aws_lc_rs::default_provider();
    let suites = &mut provider.cipher_suites;
    suites.sort_by_key(|suite| {
        !matches!(
            suite.suite(),
            CipherSuite::TLS13_AES_128_GCM_SHA256
                | CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
                | CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256
        )
    });
    provider
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suites_of_each_version_begin_with_aes_128_and_none_is_lost() {
        let names = |provider: CryptoProvider| {
            let suites = provider.cipher_suites.into_iter();
            suites.map(|suite| suite.suite()).collect::<Vec<_>>()
        };
        let found = names(aes_128_first());
        let versions = ["TLS13_", "TLS_ECDHE_ECDSA_", "TLS_ECDHE_RSA_"];
        for version in versions {
            let mut suites = found.iter().filter_map(|suite| suite.as_str());
            let first = suites.find(|suite| suite.starts_with(version));
            assert!(
                first.is_some_and(|suite| suite.contains("AES_128_GCM")),
                "{found:?}"
            );
        }
        let default = names(aws_lc_rs::default_provider());
        assert!(found.len() == default.len() && default.iter().all(|it| found.contains(it)));
    }
}
