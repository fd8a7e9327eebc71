package sandbox

import (
	"regexp"
	"slices"
	"strings"
)

// DiagnosticsLimit is the most that a report has, in bytes.
const DiagnosticsLimit = 256 << 10

func (s DiagnosticScope) known() bool {
	return slices.Contains([]DiagnosticScope{DiagnosticSummary, DiagnosticInspect, DiagnosticEvents, DiagnosticLogs}, s)
}

// harmlessNames are the variables and labels whose values a report may show.
// Every other value is masked: a list of what is secret would never be whole.
var harmlessNames = []string{
	"PATH", "HOME", "LANG", "LC_ALL", "TERM", "TZ", "USER", "SHELL", "PWD", "HOSTNAME",
	KeyManagedBy, KeyInstallation, KeySessionID, KeyAssignmentID,
}

var (
	assignment = regexp.MustCompile(`([A-Za-z_][A-Za-z0-9_./-]*)=`)
	header     = regexp.MustCompile(`(?i)("?[a-z0-9_.-]*(?:authorization|cookie|token|secret|passw|credential|api[_-]?key|private[_-]?key)[a-z0-9_.-]*"?\s*:)\s*\S`)
	bearer     = regexp.MustCompile(`(?i)\b(bearer|basic)\s+\S+`)
	userinfo   = regexp.MustCompile(`://[^/\s@]+@`)
)

const mask = "***"

// RedactDiagnostics makes a report fit to be shown. Lines that assign a value
// to a name keep the values of a short list of harmless names; the rest of any
// other such line is masked, and so is every following line that assigns
// nothing, to the end of the report, because a value may have several lines.
// Headers and fields with telling names, bearer tokens and user names in URLs
// are masked as well. More than DiagnosticsLimit is cut: events and logs keep
// their end from the first whole line on, other reports their beginning.
func RedactDiagnostics(text string, scope DiagnosticScope) (report string, cut bool) {
	// Redacted before it is cut, or the cut could remove the name of a value.
	var b strings.Builder
	masking := false
	for line := range strings.Lines(strings.ToValidUTF8(text, "?")) {
		body := strings.TrimRight(line, "\r\n")
		out, masked, assigns := redactLine(body)
		switch {
		case masked:
			masking = true
		case masking && !assigns && strings.TrimSpace(body) != "":
			out = mask
		}
		b.WriteString(out)
		b.WriteString(line[len(body):])
	}
	report = b.String()
	if len(report) <= DiagnosticsLimit {
		return report, false
	}
	if scope == DiagnosticEvents || scope == DiagnosticLogs {
		report = report[len(report)-DiagnosticsLimit:]
		if _, rest, ok := strings.Cut(report, "\n"); ok {
			report = rest
		}
	} else {
		report = report[:DiagnosticsLimit]
	}
	return strings.ToValidUTF8(report, ""), true
}

// redactLine masks one line. masked: something of it may go on in the next line.
func redactLine(line string) (out string, masked, assigns bool) {
	for _, m := range assignment.FindAllStringSubmatchIndex(line, -1) {
		assigns = true
		if !slices.Contains(harmlessNames, line[m[2]:m[3]]) {
			line, masked = line[:m[1]]+mask, true
			break
		}
	}
	line = userinfo.ReplaceAllString(line, "://"+mask+"@")
	line = bearer.ReplaceAllString(line, "$1 "+mask)
	if m := header.FindStringSubmatchIndex(line); m != nil {
		line, masked = line[:m[3]]+" "+mask, true
	}
	return line, masked, assigns
}
