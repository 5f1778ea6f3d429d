//! The messages of a conversation.

use crate::Message;

/// Messages in an order that chat templates take: an optional system message, then exchanges of a user's message and
/// an answer, the last of which may be missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conversation {
    messages: Vec<Message>,
}

impl Conversation {
    /// From messages.
    ///
    /// # Errors
    ///
    /// Says what is out of order.
    pub fn new(messages: Vec<Message>) -> Result<Conversation, String> {
        let mut expected = "user";
        for (i, message) in messages.iter().enumerate() {
            match message.role.as_str() {
                "system" if i == 0 => continue,
                role if role == expected => {}
                role => return Err(format!("message {i} is of '{role}': expected '{expected}'")),
            }
            expected = if expected == "user" { "assistant" } else { "user" };
        }
        Ok(Conversation { messages })
    }

    /// All of them.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// The system message.
    pub fn system(&self) -> Option<&str> {
        self.messages.first().filter(|m| m.role == "system").map(|m| m.content.as_str())
    }

    /// Sets the system message, or takes it away.
    pub fn set_system(&mut self, text: Option<&str>) {
        if self.system().is_some() {
            self.messages.remove(0);
        }
        if let Some(text) = text {
            self.messages.insert(0, Message::system(text));
        }
    }

    /// Whether the last message waits for an answer.
    pub fn is_pending(&self) -> bool {
        self.messages.last().is_some_and(|m| m.role == "user")
    }

    /// Adds a message of the user; one that waits for an answer is replaced, and returned.
    pub fn ask(&mut self, text: impl Into<String>) -> Option<Message> {
        let replaced = if self.is_pending() { self.messages.pop() } else { None };
        self.messages.push(Message::user(text));
        replaced
    }

    /// Adds the answer to the message that waits for one.
    pub fn answer(&mut self, content: impl Into<String>, reasoning: &str) {
        debug_assert!(self.is_pending());
        let mut message = Message::assistant(content);
        message.reasoning_content = (!reasoning.is_empty()).then(|| reasoning.to_owned());
        self.messages.push(message);
    }

    /// Takes the last answer back, so that its message waits again; false if no message does then.
    pub fn retract(&mut self) -> bool {
        if self.messages.last().is_some_and(|m| m.role == "assistant") {
            self.messages.pop();
        }
        self.is_pending()
    }

    /// Takes the last exchange back, and returns the user's message.
    pub fn undo(&mut self) -> Option<Message> {
        if self.retract() { self.messages.pop() } else { None }
    }

    /// Exchanges, the last one answered or not.
    pub fn exchanges(&self) -> usize {
        self.messages.iter().filter(|m| m.role == "user").count()
    }

    /// Drops up to `n` of the oldest exchanges, never the last one; says how many.
    pub fn drop_oldest(&mut self, n: usize) -> usize {
        let n = n.min(self.exchanges().saturating_sub(1));
        let start = usize::from(self.system().is_some());
        // Every exchange before the last is a message and its answer.
        self.messages.drain(start..start + 2 * n);
        n
    }

    /// Drops everything but the system message.
    pub fn clear(&mut self) {
        self.messages.truncate(usize::from(self.system().is_some()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(texts: &[&str]) -> Conversation {
        let mut c = Conversation::default();
        for (i, text) in texts.iter().enumerate() {
            match i % 2 {
                0 => assert_eq!(c.ask(*text), None),
                _ => c.answer(*text, ""),
            }
        }
        c
    }

    fn texts(c: &Conversation) -> Vec<&str> {
        c.messages().iter().map(|m| m.content.as_str()).collect()
    }

    #[test]
    fn the_system_message_stays_first_and_outlives_the_rest() {
        let mut c = of(&["q1", "a1"]);
        c.set_system(Some("s"));
        c.set_system(Some("t"));
        assert_eq!((texts(&c), c.system()), (vec!["t", "q1", "a1"], Some("t")));
        c.clear();
        assert_eq!(texts(&c), ["t"]);
        c.set_system(None);
        assert!(c.messages().is_empty() && c.system().is_none());
    }

    #[test]
    fn exchanges_come_and_go_in_pairs() {
        let mut c = of(&["q1", "a1", "q2", "a2", "q3"]);
        c.set_system(Some("s"));
        assert!(c.is_pending() && c.exchanges() == 3);
        assert_eq!(c.ask("q4").map(|m| m.content), Some("q3".to_owned()));
        assert_eq!(c.drop_oldest(1), 1);
        assert_eq!(texts(&c), ["s", "q2", "a2", "q4"]);
        assert_eq!(c.drop_oldest(9), 1);
        assert_eq!(texts(&c), ["s", "q4"]);
        assert_eq!(c.drop_oldest(1), 0);
        assert_eq!(c.undo().map(|m| m.content), Some("q4".to_owned()));
        assert_eq!((c.undo(), c.retract()), (None, false));
        let mut c = of(&["q1", "a1"]);
        assert!(c.retract() && c.is_pending());
        assert_eq!(of(&["q1", "a1"]).undo().map(|m| m.content), Some("q1".to_owned()));
        assert_eq!(Conversation::default().drop_oldest(1), 0);
    }

    #[test]
    fn messages_out_of_order_are_refused() {
        let (u, a, s) = (Message::user("u"), Message::assistant("a"), Message::system("s"));
        assert!(Conversation::new(vec![s.clone(), u.clone(), a.clone(), u.clone()]).is_ok());
        assert!(Conversation::new(vec![]).is_ok());
        let of = |m: &[&Message]| Conversation::new(m.iter().map(|&m| m.clone()).collect()).unwrap_err();
        assert_eq!(of(&[&u, &u]), "message 1 is of 'user': expected 'assistant'");
        assert_eq!(of(&[&u, &s]), "message 1 is of 'system': expected 'assistant'");
        assert_eq!(of(&[&a]), "message 0 is of 'assistant': expected 'user'");
    }
}
