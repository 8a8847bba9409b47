// A sender written from docs/protocol.md alone, without any library: ZMTP 3 over TCP, msgpack by hand.
//
// node sender.mjs HOST PORT RUN STEPS [foreign|integer]
//
// Sends a manifest of three layers, STEPS records of which the last has a NaN, and BYE; prints one
// line of JSON for each answer. `foreign` speaks another major, `integer` sends a loss that is none
// of the floats it has to be.

import { randomBytes } from 'node:crypto';
import { connect } from 'node:net';

const [host, port, run, steps, fault] = process.argv.slice(2);
const LAYERS = ['embed', 'block.0', 'head'];
const KINDS = {
  HELLO: 1, WELCOME: 2, MANIFEST: 3, STATS: 4, GAINS: 5, EVENT: 6, BEAT: 7, BYE: 8, ACK: 9,
  ALERT: 10, REFUSE: 11,
};
const NAMES = Object.fromEntries(Object.entries(KINDS).map(([name, kind]) => [kind, name]));

// msgpack

class Float {
  constructor(value) { this.value = value; }
}

function header(size, small, limit, codes) {
  if (size < limit) return Buffer.from([small | size]);
  const [short, long] = codes;
  const bytes = Buffer.alloc(size < 65536 ? 3 : 5);
  bytes[0] = size < 65536 ? short : long;
  if (size < 65536) bytes.writeUInt16BE(size, 1);
  else bytes.writeUInt32BE(size, 1);
  return bytes;
}

function pack(value) {
  if (value === null) return Buffer.from([0xc0]);
  if (typeof value === 'boolean') return Buffer.from([value ? 0xc3 : 0xc2]);
  if (value instanceof Float) {
    const bytes = Buffer.alloc(9);
    bytes[0] = 0xcb;
    bytes.writeDoubleBE(value.value, 1);
    return bytes;
  }
  if (typeof value === 'number' || typeof value === 'bigint') {
    if (value >= 0 && value < 128) return Buffer.from([Number(value)]);
    const bytes = Buffer.alloc(9);
    bytes[0] = value < 0 ? 0xd3 : 0xcf;
    if (value < 0) bytes.writeBigInt64BE(BigInt(value), 1);
    else bytes.writeBigUInt64BE(BigInt(value), 1);
    return bytes;
  }
  if (typeof value === 'string') {
    const text = Buffer.from(value, 'utf8');
    return Buffer.concat([header(text.length, 0xa0, 32, [0xda, 0xdb]), text]);
  }
  if (Buffer.isBuffer(value)) {
    return Buffer.concat([header(value.length, 0, 0, [0xc5, 0xc6]), value]);
  }
  if (Array.isArray(value)) {
    return Buffer.concat([header(value.length, 0x90, 16, [0xdc, 0xdd]), ...value.map(pack)]);
  }
  const entries = Object.entries(value);
  const items = entries.flatMap(([key, item]) => [pack(key), pack(item)]);
  return Buffer.concat([header(entries.length, 0x80, 16, [0xde, 0xdf]), ...items]);
}

function unpack(bytes) {
  let at = 0;
  const uint = (size) => {
    const read = size === 8 ? Number(bytes.readBigUInt64BE(at)) : bytes.readUIntBE(at, size);
    at += size;
    return read;
  };
  const int = (size) => {
    const read = size === 8 ? Number(bytes.readBigInt64BE(at)) : bytes.readIntBE(at, size);
    at += size;
    return read;
  };
  const float = (size) => {
    const read = size === 8 ? bytes.readDoubleBE(at) : bytes.readFloatBE(at);
    at += size;
    return read;
  };
  const raw = (size) => bytes.subarray(at, (at += size));
  const array = (size) => Array.from({ length: size }, next);
  const map = (size) => Object.fromEntries(array(2 * size).reduce(
    (pairs, item, i, all) => (i % 2 ? [...pairs, [all[i - 1], item]] : pairs), []));
  function next() {
    const code = uint(1);
    if (code < 0x80) return code;
    if (code < 0x90) return map(code & 0x0f);
    if (code < 0xa0) return array(code & 0x0f);
    if (code < 0xc0) return raw(code & 0x1f).toString('utf8');
    if (code >= 0xe0) return code - 256;
    switch (code) {
      case 0xc0: return null;
      case 0xc2: return false;
      case 0xc3: return true;
      case 0xc4: case 0xc5: case 0xc6: return raw(uint(1 << (code - 0xc4)));
      case 0xca: case 0xcb: return float(code === 0xca ? 4 : 8);
      case 0xcc: case 0xcd: case 0xce: case 0xcf: return uint(1 << (code - 0xcc));
      case 0xd0: case 0xd1: case 0xd2: case 0xd3: return int(1 << (code - 0xd0));
      case 0xd9: case 0xda: case 0xdb: return raw(uint(1 << (code - 0xd9))).toString('utf8');
      case 0xdc: case 0xdd: return array(uint(code === 0xdc ? 2 : 4));
      case 0xde: case 0xdf: return map(uint(code === 0xde ? 2 : 4));
      default: throw new Error(`msgpack code ${code}`);
    }
  }
  return next();
}

function column(code, values) {
  const bytes = Buffer.alloc(8 * values.length);
  values.forEach((value, i) => (code === '<u8'
    ? bytes.writeBigUInt64LE(BigInt(value), 8 * i)
    : bytes.writeDoubleLE(value, 8 * i)));
  return [code, values.length, bytes];
}

// ZMTP 3, mechanism NULL

const LONG = 2;
const COMMAND = 4;

const socket = connect({ host, port: Number(port), noDelay: true });

function sendFrame(flags, body) {
  const size = Buffer.alloc(body.length > 255 ? 9 : 2);
  size[0] = flags | (body.length > 255 ? LONG : 0);
  if (body.length > 255) size.writeBigUInt64BE(BigInt(body.length), 1);
  else size[1] = body.length;
  socket.write(Buffer.concat([size, body]));
}

function greet() {
  const greeting = Buffer.alloc(64);
  greeting.set([0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 3, 1]);
  greeting.write('NULL', 12, 'ascii');
  socket.write(greeting);
  const property = (name, value) => Buffer.concat([
    Buffer.from([name.length]), Buffer.from(name), Buffer.from([0, 0, 0, value.length]),
    Buffer.from(value)]);
  sendFrame(COMMAND, Buffer.concat([Buffer.from('\x05READY'), property('Socket-Type', 'DEALER')]));
}

let received = Buffer.alloc(0);
let greeted = false;

socket.on('connect', greet);
socket.on('data', (data) => {
  received = Buffer.concat([received, data]);
  if (!greeted) {
    if (received.length < 64) return;
    received = received.subarray(64);
    greeted = true;
    hello();
  }
  for (;;) {
    if (received.length < 2) return;
    const flags = received[0];
    const start = flags & LONG ? 9 : 2;
    if (received.length < start) return;
    const size = flags & LONG ? Number(received.readBigUInt64BE(1)) : received[1];
    if (received.length < start + size) return;
    take(flags, received.subarray(start, start + size));
    received = received.subarray(start + size);
  }
});

function take(flags, body) {
  if (flags & COMMAND) {
    if (body.subarray(0, 5).toString('latin1') === '\x04PING') { // its context comes back
      sendFrame(COMMAND, Buffer.concat([Buffer.from('\x04PONG'), body.subarray(7)]));
    }
    return;
  }
  if (body[0] === 1) answer(unpack(body.subarray(1)));
}

// The protocol

const session = randomBytes(16);
const records = [];
let nextToSend = 0;
let bootId = null;
let open = false;
let over = false;

function send(kind, seq, low, body) {
  const version = Buffer.from([fault === 'foreign' ? 2 : 1]);
  const now = BigInt(Date.now()) * 1000000n;
  sendFrame(0, Buffer.concat([version, pack([KINDS[kind], session, seq, low, now, body])]));
}

function hello() {
  send('HELLO', 0, 0, { run, rank: 0, world: 1, host: 'interop', versions: { node: process.version } });
}

function sendAll() {
  for (; nextToSend < records.length; nextToSend += 1) {
    const [kind, body] = records[nextToSend];
    send(kind, nextToSend + 1, 1, body);
  }
}

function end() {
  over = true;
  socket.end();
}

function answer([kind, own, , , , body]) {
  if (over) return;
  const line = { kind: NAMES[kind], mine: own.equals(session), ...body };
  if (line.boot_id) line.boot_id = line.boot_id.toString('hex');
  console.log(JSON.stringify(line));
  switch (line.mine || line.kind === 'REFUSE' ? line.kind : '') {
    case 'WELCOME':
      open = true;
      bootId = line.boot_id;
      nextToSend = line.acked; // everything is kept, so manifests that were lost come again too
      sendAll();
      break;
    case 'ACK':
      if (line.boot_id !== bootId) open = false;
      else if (line.acked === records.length) end();
      else if (line.rewind) { nextToSend = line.acked; sendAll(); }
      break;
    case 'REFUSE':
      end();
      break;
    default:
  }
}

records.push(['MANIFEST', {
  id: 1, names: LAYERS, numel: column('<u8', [10, 20, 30]), dtypes: LAYERS.map(() => 'float32'),
  columns: ['l2'], order: 'forward',
}]);
for (let step = 0; step < Number(steps); step += 1) {
  const bad = step === Number(steps) - 1;
  records.push(['STATS', {
    manifest: 1, step, labels: { point: 'collect' },
    scalars: { loss: fault === 'integer' ? 1 : new Float(1 / (step + 1)) },
    columns: { l2: column('<f8', [1, bad ? NaN : 2, 3]) },
  }]);
}
records.push(['BYE', { reason: 'closed' }]);

const again = setInterval(() => { if (!open && greeted && !over) hello(); }, 1000);
socket.on('close', () => clearInterval(again));
socket.on('error', (error) => { console.error(error.message); process.exitCode = 1; });
