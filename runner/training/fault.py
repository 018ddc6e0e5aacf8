"""The faults of a training and of its end, by the names that they have in the table beside this."""

from runner.errors import faults_by_name
from runner.schema.text import read_tables

fault = faults_by_name(lambda: read_tables(__file__))
