package conform

import (
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// Status is how a clause ended.
type Status string

// The statuses. Failed and NotRun make a run fail.
const (
	Passed      Status = "passed"
	Failed      Status = "failed"
	Deviation   Status = "deviation"    // failed, and listed with a reason
	NotDeclared Status = "not-declared" // its capability isn't declared, and the refusal is right
	Skipped     Status = "skipped"      // it can't be tried here
	NotRun      Status = "not-run"      // what it needs isn't there, which is another result's failure, or the run ended
)

// Result is how one clause ended.
type Result struct {
	Info
	Status   Status `json:"status"`
	Reason   string `json:"reason"`   // why it isn't simply passed
	Expected string `json:"expected"` // with Failed and Deviation
	Seen     string `json:"seen"`     // with Failed and Deviation
	Ms       int64  `json:"ms"`
}

// Summary counts results.
type Summary struct {
	Passed      int `json:"passed"`
	Failed      int `json:"failed"`
	Deviations  int `json:"deviations"`
	NotDeclared int `json:"not_declared"`
	Skipped     int `json:"skipped"`
	NotRun      int `json:"not_run"`
}

func (s *Summary) count(st Status) {
	switch st {
	case Passed:
		s.Passed++
	case Failed:
		s.Failed++
	case Deviation:
		s.Deviations++
	case NotDeclared:
		s.NotDeclared++
	case Skipped:
		s.Skipped++
	case NotRun:
		s.NotRun++
	}
}

// Report is the outcome of a run. Its JSON form is stable.
type Report struct {
	Provider string   `json:"provider"`
	Clauses  []Result `json:"clauses"`
	Summary  Summary  `json:"summary"`
}

// OK reports whether nothing failed, and everything was tried that can be.
func (r Report) OK() bool { return r.Summary.Failed == 0 && r.Summary.NotRun == 0 }

// Find gives the result of a clause.
func (r Report) Find(id string) (Result, bool) {
	i := slices.IndexFunc(r.Clauses, func(c Result) bool { return c.ID == id })
	if i < 0 {
		return Result{}, false
	}
	return r.Clauses[i], true
}

// WriteText writes what a person reads: every broken promise with what was
// expected and seen, then what deviates, isn't declared, was skipped or not
// run, then the count.
func (r Report) WriteText(w io.Writer) error {
	var b strings.Builder
	for _, st := range []Status{Failed, Deviation} {
		for _, c := range r.Clauses {
			if c.Status != st {
				continue
			}
			fmt.Fprintf(&b, "%s: %s\n", strings.ToUpper(string(st)), c.ID)
			if c.Doc != "" {
				fmt.Fprintf(&b, "  promise   %s\n", c.Doc)
			}
			if c.Reason != "" && c.Reason != c.Doc {
				fmt.Fprintf(&b, "  reason    %s\n", c.Reason)
			}
			fmt.Fprintf(&b, "  expected  %s\n  seen      %s\n\n", c.Expected, c.Seen)
		}
	}
	for _, st := range []Status{NotDeclared, Skipped, NotRun} {
		byReason := map[string][]string{}
		for _, c := range r.Clauses {
			if c.Status == st {
				byReason[c.Reason] = append(byReason[c.Reason], c.ID)
			}
		}
		for _, reason := range sortedKeys(byReason) {
			ids := strings.Join(byReason[reason], " ")
			if st == NotRun { // they may be hundreds
				ids = areas(byReason[reason])
			}
			fmt.Fprintf(&b, "%s: %s\n  %s\n\n", st, reason, ids)
		}
	}
	s := r.Summary
	fmt.Fprintf(&b, "%s: %d passed, %d failed, %d deviations, %d not declared, %d skipped",
		firstNonEmpty(r.Provider, "provider"), s.Passed, s.Failed, s.Deviations, s.NotDeclared, s.Skipped)
	if s.NotRun > 0 {
		fmt.Fprintf(&b, ", %d not run", s.NotRun)
	}
	b.WriteByte('\n')
	_, err := io.WriteString(w, b.String())
	return err
}

// areas counts clauses by the first word of their ids: "create 9, files 57".
func areas(ids []string) string {
	var words []string
	count := map[string]int{}
	for _, id := range ids {
		area, _, _ := strings.Cut(id, ".")
		if count[area]++; count[area] == 1 {
			words = append(words, area)
		}
	}
	for i, area := range words {
		words[i] = fmt.Sprintf("%s %d", area, count[area])
	}
	return strings.Join(words, ", ")
}

// WriteJUnit writes the report as JUnit XML, which test dashboards read. A
// deviation, like a clause that isn't declared or wasn't run, is a skipped test.
func (r Report) WriteJUnit(w io.Writer) error {
	type message struct {
		Message string `xml:"message,attr"`
		Text    string `xml:",chardata"`
	}
	type testcase struct {
		Name    string   `xml:"name,attr"`
		Class   string   `xml:"classname,attr"`
		Time    string   `xml:"time,attr"`
		Failure *message `xml:"failure,omitempty"`
		Skipped *message `xml:"skipped,omitempty"`
	}
	type testsuite struct {
		XMLName  xml.Name   `xml:"testsuite"`
		Name     string     `xml:"name,attr"`
		Tests    int        `xml:"tests,attr"`
		Failures int        `xml:"failures,attr"`
		Skipped  int        `xml:"skipped,attr"`
		Time     string     `xml:"time,attr"`
		Cases    []testcase `xml:"testcase"`
	}
	s := r.Summary
	suite := testsuite{Name: "provider " + r.Provider, Tests: len(r.Clauses), Failures: s.Failed,
		Skipped: s.Skipped + s.NotDeclared + s.Deviations + s.NotRun}
	var total int64
	for _, c := range r.Clauses {
		total += c.Ms
		t := testcase{Name: c.ID, Class: r.Provider, Time: seconds(c.Ms)}
		switch c.Status {
		case Failed:
			t.Failure = &message{Message: c.Reason, Text: "expected: " + c.Expected + "\nseen: " + c.Seen}
		case Passed:
		default:
			t.Skipped = &message{Message: string(c.Status) + ": " + c.Reason}
		}
		suite.Cases = append(suite.Cases, t)
	}
	suite.Time = seconds(total)
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	enc := xml.NewEncoder(w)
	enc.Indent("", "  ")
	if err := enc.Encode(suite); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}

func seconds(ms int64) string { return fmt.Sprintf("%d.%03d", ms/1000, ms%1000) }

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

func firstNonEmpty(ss ...string) string {
	for _, s := range ss {
		if s != "" {
			return s
		}
	}
	return ""
}
