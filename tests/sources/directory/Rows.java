import com.opencsv.CSVParserBuilder;
import com.opencsv.CSVReader;
import com.opencsv.CSVReaderBuilder;
import com.opencsv.ICSVParser;
import com.opencsv.RFC4180ParserBuilder;
import com.opencsv.enums.CSVReaderNullFieldIndicator;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.StringReader;
import java.util.Base64;

/**
 * Reads a file of CSV for each line of its input, which holds the dialect and the file in Base64.
 * Answers with a line of rows, values in Base64; a "!" at its end says that the file is broken.
 */
class Rows {
  public static void main(String[] arguments) throws Exception {
    var input = new BufferedReader(new InputStreamReader(System.in));
    for (String line; (line = input.readLine()) != null; ) {
      String[] given = line.split(" ", -1);
      var nulls = CSVReaderNullFieldIndicator.valueOf(given[7]);
      var content = new StringReader(new String(Base64.getDecoder().decode(given[8]), "UTF-8"));
      ICSVParser parser =
          is(given[3])
              ? new RFC4180ParserBuilder()
                  .withSeparator(character(given[0]))
                  .withQuoteChar(character(given[1]))
                  .withFieldAsNull(nulls)
                  .build()
              : new CSVParserBuilder()
                  .withSeparator(character(given[0]))
                  .withQuoteChar(character(given[1]))
                  .withEscapeChar(character(given[2]))
                  .withStrictQuotes(is(given[4]))
                  .withIgnoreQuotations(is(given[5]))
                  .withIgnoreLeadingWhiteSpace(is(given[6]))
                  .withFieldAsNull(nulls)
                  .build();
      CSVReader reader =
          new CSVReaderBuilder(content).withCSVParser(parser).withFieldAsNull(nulls).build();
      var answer = new StringBuilder();
      try {
        for (String[] row; (row = reader.readNext()) != null; answer.append(';')) {
          for (String value : row) {
            answer.append(value == null ? "-" : encoded(value)).append(',');
          }
        }
      } catch (java.io.IOException error) {
        answer.append('!');
      }
      System.out.println(answer);
    }
  }

  private static boolean is(String text) {
    return text.equals("True");
  }

  private static char character(String number) {
    return (char) Integer.parseInt(number);
  }

  private static String encoded(String value) throws Exception {
    return Base64.getEncoder().encodeToString(value.getBytes("UTF-8"));
  }
}
