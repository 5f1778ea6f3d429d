// Answers that a server could give.

export const HOSTILE = `# Hello <script>pwned()</script>

<img src=x onerror=pwned()> and <svg onload=pwned()></svg> <iframe src="javascript:pwned()"></iframe>

[click](javascript:pwned()) [click](JAVASCRIPT:pwned()) [click](data:text/html,<script>pwned()</script>) <javascript:pwned()>
[good](https://example.org/" onmouseover="pwned()) ![picture](https://example.org/track.png) [mail](mailto:a@b.c)
[quoted](https://example.org/ "x\\" onclick=\\"pwned()")

<style>* { display: none }</style><form action="https://example.org"><input name=x></form>

\`\`\`html"><img src=x onerror=pwned()>
</code></pre><script>pwned()</script>
\`\`\`

| <script>pwned()</script> | b |
|---|---|
| <img src=x onerror=pwned()> | [x](javascript:pwned()) |

> <details open ontoggle=pwned()>
> - &lt;script&gt;pwned()&lt;/script&gt; &#60;img src=x onerror=pwned()&#62;

${">".repeat(300)} ${"*a **b ".repeat(300)} ${"[".repeat(300)}
`;

export const RICH = `# Sorting a list

There are **many** ways to sort, *some* of them fast, ~~all~~ none of them free. See [the article](https://example.org/sorting) or
https://example.org/a_b_c.

## In Rust

\`\`\`rust
fn main() {
    let mut numbers = vec![3, 1, 2]; // unsorted
    numbers.sort_unstable();
    println!("{numbers:?} and a line that is long enough to need a scroll bar of its own, on a phone at least");
}
\`\`\`

What it does:

1. makes a vector with \`vec![]\`,
2. sorts it:
   - in place,
   - **without** keeping the order of equals
     - which numbers do not mind,
3. prints it.

| Algorithm | Average | Worst | Stable |
|:----------|:-------:|------:|--------|
| Quicksort | n log n | n² | no |
| Merge sort | n log n | n log n | yes |
| Insertion sort | n² | n² | yes |

> Premature optimization is the root of all evil.
>
> — somebody, in a hurry

- [x] sorted
- [ ] searched

---

The mean is \\(\\bar{x} = \\frac{1}{n} \\sum_i x_i\\), and

\\[
\\sigma^2 = \\frac{1}{n} \\sum_i (x_i - \\bar{x})^2
\\]

### With Python

\`\`\`python
def sort(numbers):
    """Sorts."""
    return sorted(numbers, key=lambda n: -n)  # descending
\`\`\`
`;
