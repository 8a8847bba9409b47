// What draws lines, loaded once: it is not part of this package's own files, and may not be there.

let loading = null;

/** Return uPlot; null where it was not installed with the aggregator. */
export function loadLines() {
  loading ??= load();
  return loading;
}

async function load() {
  const path = document.querySelector("meta[name=gradwatch-lines]").content;
  if (!path) return null;
  try {
    return (await import(path)).default;
  } catch (error) {
    console.error("uPlot", error);
    return null;
  }
}

/** What is said where it is not there. */
export const MISSING =
  "Lines are missing: this aggregator was installed without uPlot, which draws them. The numbers are in the table.";
