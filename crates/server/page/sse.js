// Server-sent events, as they come over a response's body. Pure.

/// Splits a text that comes in pieces into the data of events.
export class EventSplitter {
    rest = "";
    data = [];

    /// The data of the events that a piece completes.
    push(text) {
        const events = [];
        const lines = (this.rest + text).split("\n");
        this.rest = lines.pop();
        for (const ended of lines) {
            const line = ended.endsWith("\r") ? ended.slice(0, -1) : ended;
            if (line === "") {
                if (this.data.length) {
                    events.push(this.data.join("\n"));
                    this.data = [];
                }
            } else if (line.startsWith("data:")) {
                this.data.push(line.slice(line[5] === " " ? 6 : 5));
            }
            // Comments keep the connection alive; other fields say nothing here.
        }
        return events;
    }
}

/// The data of the events of a body.
export async function* events(body) {
    const splitter = new EventSplitter();
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    try {
        for (;;) {
            const { done, value } = await reader.read();
            if (done) {
                return;
            }
            yield* splitter.push(value);
        }
    } finally {
        reader.cancel().catch(() => {});
    }
}
