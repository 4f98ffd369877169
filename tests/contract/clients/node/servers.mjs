// The servers under test: one with the demo model, one with scripted replies (tests/support_scripted_model.py).

export const DEMO = { baseURL: process.env.CHAIRLIFT_SUITE_URL, model: "chairlift:demo" };
export const SCRIPTED = { baseURL: process.env.CHAIRLIFT_SUITE_SCRIPTED_URL, model: "scripted" };
export const CAPITAL = "What is the capital of France?";
export const WEATHER = "What is the weather in Paris?";
export const LEGS = "How many legs have two cats?";
export const REASONING = "A cat has 4 legs.\n2 times 4 is 8.";
export const PARIS = { name: "Paris", population: 2_100_000, is_capital: true };
