// Reads a trace with Perfetto's own trace processor, and prints the rows of a query as JSON:
// `node perfetto.mjs FOLDER TRACE SQL`. `tools/servers` installs it into FOLDER.
//
// The processor is WebAssembly, and `engine_bundle.js` the worker that runs it in Perfetto's user
// interface. Here it gets what it uses of a browser. It takes and gives the messages that
// `protos/perfetto/trace_processor/trace_processor.proto` defines, of which few fields are needed.

import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import vm from 'node:vm';

const [folder, trace, sql] = process.argv.slice(2);

// Messages are written as [number of field, value] and read as maps of number to values.
function varint(value) {
    const bytes = [];
    for (let left = BigInt(value); ; left >>= 7n) {
        const byte = Number(left & 127n);
        if (left < 128n) return Buffer.from([...bytes, byte]);
        bytes.push(byte | 128);
    }
}

function message(...fields) {
    const written = fields.map(([field, value]) => {
        if (typeof value === 'number') return Buffer.concat([varint(field << 3), varint(value)]);
        const bytes = Buffer.from(value);
        return Buffer.concat([varint((field << 3) | 2), varint(bytes.length), bytes]);
    });
    return Buffer.concat(written);
}

class Reader {
    constructor(bytes) {
        this.bytes = Buffer.from(bytes);
        this.at = 0;
    }

    get isAtEnd() {
        return this.at >= this.bytes.length;
    }

    varint() {
        let value = 0n;
        for (let shift = 0n; ; shift += 7n) {
            const byte = this.bytes[this.at++];
            value |= BigInt(byte & 127) << shift;
            if (byte < 128) return Number(BigInt.asIntN(64, value));
        }
    }

    take(length) {
        this.at += length;
        return this.bytes.subarray(this.at - length, this.at);
    }

    // Values of each field.
    fields() {
        const fields = {};
        while (!this.isAtEnd) {
            const tag = this.varint();
            const value = [() => this.varint(), () => this.take(8), () => this.take(this.varint())][tag & 7]();
            (fields[tag >> 3] ??= []).push(value);
        }
        return fields;
    }
}

const fields = (bytes) => new Reader(bytes).fields();
const text = (values) => (values ? Buffer.from(values[0]).toString() : '');

// TraceProcessorRpc and its requests.
const SEQUENCE = 1, REQUEST = 2, APPENDED = 201, APPENDING = 101, QUERY = 103, RESULT = 203, FATAL = 5;
const APPEND = 1, FINALIZE = 2, STREAM = 3;

let sequence = 0;
const waiting = [];
const rows = [];
let names = [];

function answered(bytes) {
    for (const reply of fields(bytes)[1]) {
        const rpc = fields(reply);
        const failure = text(rpc[FATAL]) || text(rpc[APPENDED] && fields(rpc[APPENDED][0])[2]);
        if (failure) throw new Error(failure);
        const result = rpc[RESULT] && fields(rpc[RESULT][0]);
        if (result) {
            if (text(result[2])) throw new Error(text(result[2]));
            if (result[1]) names = result[1].map(String);
            const batches = (result[3] ?? []).map(fields);
            batches.forEach(read);
            if (!batches.some((batch) => batch[6]?.[0])) continue;
        }
        waiting.shift()();
    }
}

// CellsBatch: the kinds of all cells, and the values of each kind.
function read(batch) {
    const numbers = new Reader(Buffer.concat(batch[2] ?? []));
    const floats = new Reader(Buffer.concat(batch[3] ?? []));
    const strings = text(batch[5]).split('\0');
    const value = [, () => null, () => numbers.varint(), () => floats.take(8).readDoubleLE(), () => strings.shift()];
    const kinds = Buffer.concat(batch[1] ?? []);
    for (let at = 0; at < kinds.length; at += names.length) {
        rows.push(Object.fromEntries(names.map((name, index) => [name, value[kinds[at + index]]()])));
    }
}

// What the bundle uses of a worker of a browser. It compiles before it returns.
const port = { postMessage: answered };
const location = { href: 'https://localhost/' };
const self = { location };
class XMLHttpRequest {
    open(method, name) {
        this.response = readFileSync(join(folder, name));
    }

    send() {}
}
vm.runInNewContext(readFileSync(join(folder, 'engine_bundle.js'), 'utf8'), {
    self,
    location,
    console: { log() {}, warn() {}, error: console.error },
    performance,
    setTimeout,
    TextDecoder,
    TypeError,
    Uint8Array,
    URL,
    WebAssembly,
    WorkerGlobalScope: Object,
    XMLHttpRequest,
});
self.onmessage({ data: port });
await new Promise(setImmediate);

async function send(...request) {
    const rpc = new Uint8Array(message([1, message([SEQUENCE, sequence++], ...request)]));
    const replied = new Promise((resolve) => waiting.push(resolve));
    port.onmessage({ data: rpc });
    await replied;
}

await send([REQUEST, APPEND], [APPENDING, readFileSync(trace)]);
await send([REQUEST, FINALIZE]);
await send([REQUEST, STREAM], [QUERY, message([1, sql])]);
console.log(JSON.stringify(rows));
