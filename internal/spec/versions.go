// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"regexp"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/trouble"
)

// areNumbers says whether a text is one to three numbers with dots between them. The first has
// minFirst to maxFirst digits and does not begin with 0; the others have at most maxRest digits.
func areNumbers(text string, minFirst, maxFirst, maxRest int) bool {
	parts := strings.Split(text, ".")
	if len(parts) > 3 || len(parts[0]) < minFirst || text[0] == '0' {
		return false
	}

	most := maxFirst
	for _, part := range parts {
		isNumber := part != "" && strings.Trim(part, "0123456789") == ""
		if !isNumber || len(part) > most {
			return false
		}
		most = maxRest
	}

	return true
}

func checkDriverVersion(v string) (string, *trouble.Error) {
	// Branches have had three digits since 2016 (R367).
	if areNumbers(v, 3, 4, 3) {
		return v, nil
	}

	isTemplate := strings.ContainsAny(v, "{}$%")
	switch {
	case isTemplate:
		return v, wrong("put in its value: gpuadm knows no variables", "%s is a template", show(v))
	case matches(`^1[0-9]\.[0-9]$`, v):
		return v, wrong(`write the driver's version, such as "580.95.05", or its branch, such as "580": nvidia-smi shows both`,
			"%s is a version of CUDA, not of the driver", show(v))
	}

	const hasVersion = `^\D{0,16}([1-9][0-9]{2,3}(?:\.[0-9]{1,3}){0,2})(?:\D|$)`
	fix := `write a version such as "580.95.05", or a branch such as "580"`
	if m := regexp.MustCompile(hasVersion).FindStringSubmatch(v); m != nil {
		fix = "did you mean " + strconv.Quote(m[1]) + "?"
	}
	return v, wrong(fix, "%s is neither a driver version nor a branch", show(v))
}

func checkToolkitVersion(v string) (string, *trouble.Error) {
	const withSuffix = `^[1-9][0-9]{0,3}(\.[0-9]{1,4}){0,2}([-~][0-9A-Za-z.]{1,16}){0,2}$`
	if areNumbers(v, 1, 4, 4) || matches(withSuffix, v) {
		return v, nil
	}

	fix := `write a version such as "1.18.0", or a branch such as "1.18"`
	if m := regexp.MustCompile(`^[vV=~^ ]+([0-9]+(?:\.[0-9]+){0,2})$`).FindStringSubmatch(v); m != nil {
		fix = "did you mean " + show(m[1]) + "?"
	}
	return v, wrong(fix, "%s is not a version", show(v))
}
