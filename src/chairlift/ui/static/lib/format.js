// Numbers as people read them.
const SI = [[1e9, "G"], [1e6, "M"], [1e4, "k"]];

/** 1234 -> "1,234", 56789 -> "56.8k". */
export function count(value) {
  for (const [size, unit] of SI) if (value >= size) return `${trim(value / (unit === "k" ? 1e3 : size), 1)}${unit}`;
  return Math.round(value).toLocaleString("en");
}

/** Milliseconds with about three digits. */
export function ms(value) {
  return value >= 1000 ? seconds(value / 1000) : `${trim(value, value < 10 ? 2 : value < 100 ? 1 : 0)} ms`;
}

/** Seconds as "0.42 s", "12 s", "3 min 5 s" or "2 h 10 min". */
export function seconds(value) {
  if (value < 0.1) return `${trim(value * 1000, value < 0.01 ? 1 : 0)} ms`;
  if (value < 10) return `${trim(value, 2)} s`;
  const whole = Math.round(value);
  if (whole < 60) return `${whole} s`;
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) return `${minutes} min ${whole % 60} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** 999 -> "999 bytes", 1234 -> "1.2 kB", 50000000 -> "50 MB". */
export function bytes(value) {
  if (value < 1000) return `${value} byte${value === 1 ? "" : "s"}`;
  const [size, unit] = value < 999_950 ? [1e3, "kB"] : [1e6, "MB"];
  return `${trim(value / size, value / size < 100 ? 1 : 0)} ${unit}`;
}

export function percent(share) {
  return `${trim(share * 100, share < 0.1 && share > 0 ? 1 : 0)} %`;
}

/** The time of day of seconds since 1970. */
export function clock(at) {
  return new Date(at * 1000).toLocaleTimeString([], { hour12: false });
}

function trim(value, digits) {
  return value.toFixed(digits).replace(/\.(\d*?)0+$/, (_, rest) => (rest ? `.${rest}` : ""));
}
