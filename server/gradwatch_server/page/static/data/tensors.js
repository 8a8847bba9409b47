// Reads answers in the layout of safetensors: 8 bytes of length, a JSON header, arrays.

const KINDS = {
  U8: Uint8Array,
  U16: Uint16Array,
  U32: Uint32Array,
  I32: Int32Array,
  I64: BigInt64Array,
  U64: BigUint64Array,
  F32: Float32Array,
  F64: Float64Array,
};

/**
 * Parse an answer.
 *
 * @param {ArrayBuffer} buffer
 * @returns {{arrays: Map<string, {data: any, shape: number[]}>, metadata: Object<string, string>}}
 */
export function parseTensors(buffer) {
  const length = Number(new DataView(buffer).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  const { __metadata__: metadata = {}, ...rest } = header;
  const arrays = new Map();
  for (const [
    name,
    {
      dtype,
      shape,
      data_offsets: [begin, end],
    },
  ] of Object.entries(rest)) {
    const Kind = KINDS[dtype];
    const at = 8 + length + begin;
    // A view needs an address that fits its items; where it does not, the bytes are copied.
    const data =
      at % Kind.BYTES_PER_ELEMENT === 0
        ? new Kind(buffer, at, (end - begin) / Kind.BYTES_PER_ELEMENT)
        : new Kind(buffer.slice(at, 8 + length + end));
    arrays.set(name, { data, shape });
  }
  return { arrays, metadata };
}
