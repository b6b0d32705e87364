//! Signatures in the query of a URL: they authorize a request, and do not select what it returns.
//! Pure.

/// Returns whether a query only authorizes the request: then it does not select the object, and
/// another one will be used next time.
pub fn is_signature(query: &str) -> bool {
    let mut pairs = pairs(query).peekable();
    pairs.peek().is_some() && without_signature(query).is_empty()
}

/// Returns a query without the fields of its signature.
pub(super) fn without_signature(query: &str) -> String {
    let is_any = |wanted: &str| pairs(query).any(|pair| name(pair).eq_ignore_ascii_case(wanted));
    let known: &[&str] = if is_any("X-Amz-Signature") || is_any("X-Goog-Signature") {
        &[]
    } else if is_any("sig") {
        // These are parameters of Azure's shared access signatures.
        &[
            "sig", "sv", "ss", "srt", "sr", "sp", "se", "st", "spr", "sip", "skoid", "sktid",
            "skt", "ske", "sks", "skv", "sdd", "saoid", "suoid", "scid",
        ]
    } else if is_any("Signature") {
        // These are parameters of CloudFront, and of version 2 of S3's and Google's signatures.
        &[
            "Signature",
            "Expires",
            "Policy",
            "Key-Pair-Id",
            "AWSAccessKeyId",
            "GoogleAccessId",
        ]
    } else {
        return query.to_owned();
    };
    let is_signed = |pair: &&str| {
        let name = name(pair);
        let is_prefixed = ["X-Amz-", "X-Goog-"].iter().any(|known| {
            let start = name.get(..known.len()).unwrap_or_default();
            start.eq_ignore_ascii_case(known)
        });
        is_prefixed || known.iter().any(|known| name.eq_ignore_ascii_case(known))
    };
    let others: Vec<_> = pairs(query).filter(|pair| !is_signed(pair)).collect();
    others.join("&")
}

fn pairs(query: &str) -> impl Iterator<Item = &str> {
    query.split('&').filter(|pair| !pair.is_empty())
}

fn name(pair: &str) -> &str {
    pair.split_once('=').map_or(pair, |(name, _)| name)
}
