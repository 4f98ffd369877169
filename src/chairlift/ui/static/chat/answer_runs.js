// AnswerRuns: the answers that are being generated, at most one of each conversation.
import { begunAgain, continueAnswer } from "./continuation.js";
import { emptyAnswer, generate, requestBody } from "./generation.js";
import { append, replaceMessage } from "./message_tree.js";

const SAVE_INTERVAL_MS = 2000;

export class AnswerRuns {
  /**
   * `firstModel` returns a model's name where none is chosen; `onChange(conversation)` is called at each change of an
   * answer, `onSave(conversation)` when it is time to keep it.
   */
  constructor(api, { firstModel, onChange, onSave }) {
    this.api = api;
    this.firstModel = firstModel;
    this.onChange = onChange;
    this.onSave = onSave;
    this.runs = new Map(); // id of a conversation -> {controller, conversation, show}
  }

  has(id) {
    return this.runs.has(id);
  }

  /** Return the conversation with this id whose answer is being generated, or undefined. */
  conversation(id) {
    return this.runs.get(id)?.conversation;
  }

  stop(id) {
    this.runs.get(id)?.controller.abort();
  }

  /** End the answer of a conversation, which is not there any more. */
  drop(id) {
    this.stop(id);
    this.runs.delete(id);
  }

  /** Say that a conversation has another id from now on. */
  changeId(before, id) {
    const run = this.runs.get(before);
    this.runs.delete(before);
    if (run) this.runs.set(id, run);
  }

  /** Put what has come of each answer into its conversation, and return these conversations. */
  showAll() {
    return [...this.runs.values()].map(({ conversation, show }) => {
      show();
      return conversation;
    });
  }

  /** Generate the answer to the shown messages of a conversation. */
  async answer(conversation, model) {
    if (this.has(conversation.id)) return;
    const asked = conversation.messages;
    const answer = emptyAnswer(model);
    append(conversation, asked.at(-1)?.id ?? null, [answer]);
    await this.run(conversation, answer, async (signal, onChange) => {
      answer.model = model || (await this.firstModel());
      const body = requestBody(answer.model, asked, conversation.parameters);
      answer.isJson = body.response_format !== undefined;
      await generate(this.api, body, answer, signal, onChange);
    });
  }

  /** Continue the last answer of a conversation, which was cut. */
  async goOn(conversation, model) {
    if (this.has(conversation.id)) return;
    const asked = conversation.messages.slice(0, -1);
    const original = conversation.messages.at(-1);
    const answer = begunAgain(original);
    await this.run(conversation, answer, async (signal, onChange) => {
      answer.model = model || (await this.firstModel());
      await continueAnswer(this.api, asked, conversation.parameters, original, answer, signal, onChange);
    });
  }

  async run(conversation, answer, generateAnswer) {
    const { parent } = conversation.messages.at(-1);
    const controller = new AbortController();
    let savedAt = Date.now();
    const show = () => {
      replaceMessage(conversation, { ...answer, parent, toolCalls: answer.toolCalls.map((call) => ({ ...call })) });
      if (Date.now() - savedAt > SAVE_INTERVAL_MS) {
        savedAt = Date.now();
        this.onSave(conversation);
      }
      this.onChange(conversation);
    };
    let frame = 0; // a fast stream renders once a frame, not for every token
    const showSoon = () => {
      frame ||= requestAnimationFrame(() => {
        frame = 0;
        show();
      });
    };
    const run = { controller, conversation, show };
    this.runs.set(conversation.id, run);
    show();
    this.onSave(conversation);
    try {
      await generateAnswer(controller.signal, showSoon);
    } catch (error) {
      Object.assign(answer, { isRunning: false, error: { message: error.message, code: error.code ?? "" } });
    }
    cancelAnimationFrame(frame);
    if (this.runs.get(conversation.id) !== run) return; // deleted in the meantime
    this.runs.delete(conversation.id);
    show();
    await this.onSave(conversation);
    this.onChange(conversation);
  }
}
