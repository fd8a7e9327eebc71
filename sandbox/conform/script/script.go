package script

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Step is one template with its arguments. The zero Step does nothing.
type Step struct {
	name string
	args []string
}

// Name is the template's name.
func (s Step) Name() string {
	if s.name == "" {
		return nothing
	}
	return s.name
}

// Arg gives an argument, counted from 0, as the function that made the step
// took it; "" where there is none.
func (s Step) Arg(i int) string {
	if i < 0 || i >= len(s.args) {
		return ""
	}
	return s.args[i]
}

// Int gives an argument that is a number; 0 where it is none.
func (s Step) Int(i int) int {
	n, _ := strconv.Atoi(s.Arg(i)) // made by a function that took an int
	return n
}

// Duration gives an argument that is a time; 0 where it is none.
func (s Step) Duration(i int) time.Duration {
	d, _ := time.ParseDuration(s.Arg(i) + "s") // made by a function that took a time
	return d
}

// Line renders steps as one command line, which does them one after the other.
// Its exit status is that of the last one, or that of [Exit] or [Die].
func Line(steps ...Step) string {
	var b strings.Builder
	for i, s := range steps {
		if i > 0 {
			b.WriteByte('\n')
		}
		s.render(&b)
	}
	return b.String()
}

func (s Step) render(b *strings.Builder) {
	t := byName[s.Name()]
	for i, text := range t.text {
		b.WriteString(text)
		if i < len(t.kinds) {
			b.WriteString(t.kinds[i].quote(s.Arg(i)))
		}
	}
}

// Parse gives the steps of a line that Line rendered; ok is false for any other.
func Parse(line string) (steps []Step, ok bool) {
	for rest := line; ; {
		s, n := first(rest)
		if n < 0 {
			return nil, false
		}
		steps = append(steps, s)
		if n == len(rest) {
			// What renders differently wasn't made by Line.
			return steps, Line(steps...) == line
		}
		rest = rest[n+1:]
	}
}

// first reads the step that rest begins with and says how long it is; -1: none.
func first(rest string) (Step, int) {
	for i := range templates {
		t := &templates[i]
		m := t.form.FindStringSubmatchIndex(rest)
		if m == nil || m[1] < len(rest) && rest[m[1]] != '\n' {
			continue
		}
		s := Step{name: t.Name}
		for k := range t.kinds {
			s.args = append(s.args, t.kinds[k].unquote(rest[m[2*k+2]:m[2*k+3]]))
		}
		return s, m[1]
	}
	return Step{}, -1
}

// kind is how an argument is written.
type kind string

const (
	kindBytes  kind = "bytes"  // the format of a printf, every byte in octal
	kindPath   kind = "path"   // one word in single quotes
	kindInt    kind = "int"    // digits
	kindSecs   kind = "secs"   // seconds with three decimals
	kindSignal kind = "signal" // a name without SIG
	kindName   kind = "name"   // of a variable
)

var pattern = map[kind]string{
	kindBytes:  `('(?:\\[0-7]{3})*')`,
	kindPath:   `('(?:[^']|'\\'')*')`,
	kindInt:    `([0-9]+)`,
	kindSecs:   `([0-9]+\.[0-9]{3})`,
	kindSignal: `([A-Z]+[0-9]?)`,
	kindName:   `([A-Za-z_][A-Za-z0-9_]*)`,
}

func (k kind) quote(arg string) string {
	switch k {
	case kindBytes:
		var b strings.Builder
		b.WriteByte('\'')
		for i := range len(arg) {
			fmt.Fprintf(&b, `\%03o`, arg[i])
		}
		b.WriteByte('\'')
		return b.String()
	case kindPath:
		return "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
	default:
		return arg
	}
}

func (k kind) unquote(word string) string {
	switch k {
	case kindBytes:
		var b strings.Builder
		for octal := word[1 : len(word)-1]; len(octal) >= 4; octal = octal[4:] {
			n, _ := strconv.ParseUint(octal[1:4], 8, 16) // the pattern took digits
			b.WriteByte(byte(n))
		}
		return b.String()
	case kindPath:
		return strings.ReplaceAll(word[1:len(word)-1], `'\''`, "'")
	default:
		return word
	}
}

// compile cuts a form at its placeholders, such as «path».
func compile(form string) (text []string, kinds []kind, re *regexp.Regexp) {
	var expr strings.Builder
	expr.WriteString(`\A`)
	for {
		before, after, found := strings.Cut(form, "«")
		text = append(text, before)
		expr.WriteString(regexp.QuoteMeta(before))
		if !found {
			return text, kinds, regexp.MustCompile(expr.String())
		}
		name, rest, _ := strings.Cut(after, "»")
		kinds = append(kinds, kind(name))
		expr.WriteString(pattern[kind(name)])
		form = rest
	}
}
